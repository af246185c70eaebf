"""How far laboratories are apart that measured the same operation on the same GPU: no model can be nearer to a figure.

Medians of the absolute relative differences of two programs' rows of one shape, computed from the whole sources of the
tables in ``baselines/data`` (those keep every second to sixth row, so that few shapes are left in common): NVIDIA's
aiconfigurator data (Apache-2.0, the versions that the tables name) and, for 8 GPUs, Azure's nccl-tests logs. The rows
of attention are those above 100 us, the all-reduces below 1 MiB and from 16 MiB on.
"""

LABORATORIES = {
    ("gemm", "a100", "below 1 GFLOP"): 0.056,
    ("gemm", "a100", "1-50 GFLOP"): 0.050,
    ("gemm", "a100", "above 50 GFLOP"): 0.046,
    ("gemm", "h100", "below 1 GFLOP"): 0.034,
    ("gemm", "h100", "1-50 GFLOP"): 0.027,
    ("gemm", "h100", "above 50 GFLOP"): 0.027,
    ("gemm fp8", "h100", "below 1 GFLOP"): 0.16,
    ("gemm fp8", "h100", "1-50 GFLOP"): 0.16,
    ("gemm fp8", "h100", "above 50 GFLOP"): 0.16,
    ("gemm", "h200", "below 1 GFLOP"): 0.035,
    ("gemm", "h200", "1-50 GFLOP"): 0.034,
    ("gemm", "h200", "above 50 GFLOP"): 0.045,
    ("gemm", "a100-80gb", "above 50 GFLOP"): 0.151,
    ("attention_prefill", "a100", "0.1-1 ms"): 0.142,
    ("attention_prefill", "a100", "above 1 ms"): 0.142,
    ("attention_prefill", "h100", "0.1-1 ms"): 0.089,
    ("attention_prefill", "h100", "above 1 ms"): 0.089,
    ("attention_decode", "a100", "0.1-1 ms"): 0.311,
    ("attention_decode", "a100", "above 1 ms"): 0.311,
    ("attention_decode", "h100", "0.1-1 ms"): 0.026,
    ("attention_decode", "h100", "above 1 ms"): 0.026,
    ("all_reduce", "a100", "from 64 KiB"): 0.169,
    ("all_reduce", "h100", "from 64 KiB"): 0.014,
    ("all_reduce", "h100", "below 64 KiB"): 0.757,
}
"""By operation, GPU and size band; the H100's attention is vLLM's against SGLang's, TensorRT-LLM's is 21 % away.
In fp8 each program quantises the activations in its own way, and within the time."""

SUSTAINED = 0.156
"""An H200's products above 50 GFLOP, under the power limit against in a burst, by one program."""

__all__ = ["LABORATORIES", "SUSTAINED"]

"""PyTorch's operations on the CPU: every operation's result against float32, where PyTorch is installed."""

import importlib.util

import pytest
from msgspec.structs import replace

from siliconloom.baselines.jobs import Deployment, LayerKernels
from siliconloom.baselines.measure import TOLERANCE, CannotRun, Sensors, Settings, measure, to_table
from siliconloom.baselines.operations import Dealt, Op, Precision
from siliconloom.baselines.torch_backend import TorchBackend, parse_smi, table_name
from siliconloom.baselines.torch_operations import TorchDevice, spaced

TINY = LayerKernels(hidden=256, intermediate=384, heads=8, kv_heads=2, head_dim=32, vocabulary=1000)
installed = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 D", "rtx-4090-d"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-server-edition"),
        ("CPU", "cpu"),
    ],
)
def test_devices_have_the_names_of_the_library(device, name):
    assert table_name(device) == name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("687.42, 1410\n", Sensors(687.42, 1410)),
        ("[N/A], 1410\n12, 13\n", Sensors(None, 1410)),
        ("", Sensors()),
        ("No devices were found", Sensors()),
    ],
)
def test_what_nvidia_smi_does_not_say_is_not_known(text, found):
    assert parse_smi(text) == found


@pytest.mark.parametrize(("size", "most", "found"), [(1, 16, [0]), (3, 16, [0, 1, 2]), (101, 3, [0, 50, 100])])
def test_checked_rows_reach_from_the_first_to_the_last(size, most, found):
    assert spaced(size, most) == found


def test_copies_outgrow_the_cache_and_fit_the_memory():
    place = TorchDevice(torch=None, device="cuda", cache_bytes=50, memory_bytes=1000)
    assert place.copies(10) == 20
    assert place.copies(100) == 2
    assert place.copies(600) == 1
    with pytest.raises(CannotRun, match="its operands take"):
        place.copies(800)


JOBS = [
    Deployment(op=Op.GEMM, m=33, n=64, k=48, batch=1),
    Deployment(op=Op.GEMM, m=5, n=64, k=48, batch=3),
    Deployment(op=Op.ATTENTION_PREFILL, batch=2, q_len=40, kv_len=40, heads=8, kv_heads=2, head_dim=32, causal=True),
    Deployment(op=Op.ATTENTION_PREFILL, batch=2, q_len=24, kv_len=40, heads=8, kv_heads=2, head_dim=32, causal=True),
    Deployment(op=Op.ATTENTION_PREFILL, batch=2, q_len=24, kv_len=40, heads=4, kv_heads=4, head_dim=32, causal=False),
    Deployment(op=Op.ATTENTION_BACKWARD, batch=2, q_len=40, kv_len=40, heads=8, kv_heads=2, head_dim=32, causal=True),
    Deployment(op=Op.ATTENTION_BACKWARD, batch=1, q_len=24, kv_len=24, heads=4, kv_heads=4, head_dim=32, causal=False),
    Deployment(op=Op.ATTENTION_DECODE, batch=3, q_len=1, kv_len=77, heads=8, kv_heads=1, head_dim=64),
    *(Deployment(op=op, m=7, n=256) for op in (Op.RMSNORM, Op.LAYERNORM, Op.SOFTMAX, Op.SILU_MUL, Op.GELU, Op.ADD)),
    *(Deployment(op=op, m=7, n=256) for op in (Op.ROPE, Op.EMBEDDING)),
    Deployment(op=Op.LAYER_PREFILL, model="tiny", layer=TINY, batch=2, input_tokens=300, gpus=1),
    Deployment(op=Op.LAYER_DECODE, model="tiny", layer=TINY, batch=3, input_tokens=50, gpus=1),
]


@installed
@pytest.mark.parametrize("dtype", [Precision.BF16, Precision.FP32])
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_results_agree_with_float32(job, dtype):
    import torch

    cases = TorchBackend(torch, "cpu").prepare(replace(job, dtype=dtype))
    assert cases
    for case in cases:
        assert 0 <= case.error() <= TOLERANCE[dtype]
        assert case.run(3) > 0
        assert len(case.software.split(",")) == 1
        case.close()


@installed
@pytest.mark.parametrize("op", [Op.LAYER_PREFILL, Op.LAYER_DECODE])
def test_a_layer_of_experts_agrees_with_float32(op):
    import torch

    sizes = replace(TINY, experts=5, chosen=2)
    job = Deployment(op=op, model="tiny", layer=sizes, batch=3, input_tokens=70, gpus=1)
    for case in TorchBackend(torch, "cpu").prepare(job):
        assert case.error() <= TOLERANCE[Precision.BF16]


@installed
@pytest.mark.parametrize("dealt", list(Dealt))
def test_products_of_experts_agree_with_float32(dealt):
    import torch

    job = Deployment(op=Op.GROUPED_GEMM, m=29, n=64, k=48, batch=5, dealt=dealt)
    for case in TorchBackend(torch, "cpu").prepare(job):
        assert case.error() <= TOLERANCE[Precision.BF16]
    with pytest.raises(CannotRun, match="multiples of 16 bytes"):
        TorchBackend(torch, "cpu").prepare(replace(job, n=63))


@installed
def test_a_wrong_result_is_seen():
    import torch

    (case,) = TorchBackend(torch, "cpu").prepare(Deployment(op=Op.GEMM, m=64, n=64, k=64, batch=1))
    right = case._made.calls[0]()
    assert case.error() < 0.01
    case._made = replace(case._made, check=lambda: (right.roll(1, 0), right.float()))
    assert case.error() > 1


@installed
def test_a_whole_measurement_on_the_cpu():
    import torch

    backend = TorchBackend(torch, "cpu")
    settings = Settings(samples=3, sample_seconds=1e-4, hold_seconds=1e-3)
    jobs = [*JOBS[:1], replace(JOBS[1], dtype=Precision.FP4), Deployment(op=Op.ALL_REDUCE, gpus=2, bytes=1024)]
    found = measure(jobs, backend, settings)
    assert [str(reason) for _, reason in found.skipped] == [
        f"PyTorch {torch.__version__} has no fp4",
        "needs 2 GPUs, there are 1",
    ]
    table = to_table("cpu", found, backend, settings)
    assert len(table) == 1
    assert table.time_us[0] > 0

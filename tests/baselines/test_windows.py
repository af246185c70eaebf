"""Attention whose queries see a window of keys, on a GPU: its work, and its time beside that without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError
from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.names import gpu_names
from siliconloom.baselines.mechanism import mechanism
from siliconloom.baselines.model import kernels_of, predict_model
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.baselines.roofline import compulsory_bytes, flops
from siliconloom.workloads import Attention, load_workload

GPUS = {name: load_gpu(name) for name in gpu_names()}
HEADS = {"batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 64}
sizes = st.integers(1, 5000) | st.integers(1, 200_000)


@given(st.sampled_from(["attention_prefill", "attention_decode"]), sizes, sizes, st.none() | sizes, st.booleans())
def test_work_is_that_of_the_operator_graph(op, queries, known, window, causal):
    known = known if causal or window is None else 0  # to both sides: of as many queries as keys
    shape = HEADS | {"q_len": queries, "kv_len": queries + known, "causal": causal}
    named = {"name": "attention", "block": "layer", "precision": DataType.BF16}
    operator = Attention(**named, v_head_dim=64, window=window, **shape)
    row = shape | {"op": op, "dtype": "bf16", "window": window, "causal": str(shape["causal"]).lower()}
    made = make_operations([row])
    assert flops(made).tolist() == [2 * operator.macs]
    assert compulsory_bytes(made).tolist() == [operator.input_bytes + operator.output_bytes]


@given(
    st.sampled_from(sorted(GPUS)),
    st.sampled_from(["attention_prefill", "attention_backward"]),
    st.integers(1, 64),
    sizes,
    st.just(0) | sizes,
    sizes,
    sizes,
)
def test_a_narrower_window_takes_no_longer_and_one_of_all_keys_as_long_as_none(
    name, op, batch, queries, known, window, wider
):
    gpu = GPUS[name]
    row = HEADS | {"op": op, "batch": batch, "q_len": queries, "kv_len": queries + known, "dtype": "fp16"}
    narrow, wide = sorted((window, wider))
    rows = [row | {"window": each} for each in (narrow, wide, row["kv_len"], row["kv_len"] + 1)]
    try:
        found = predict(gpu, make_operations([row, *rows]))
    except LoomError:
        return
    whole, first, second, covering, beyond = found.seconds.tolist()
    assert first <= second * (1 + 1e-9)
    assert second <= whole * (1 + 1e-9)
    assert covering == beyond == whole
    assert (found.seconds >= found.roofline).all()


@pytest.mark.parametrize("software", ["torch-flash", "torch-cudnn"])
def test_windows_of_split_prompts_take_no_longer(software):
    rows = [HEADS | {"op": "attention_prefill", "q_len": 64, "kv_len": 16384, "window": w} for w in range(1, 16385, 77)]
    seconds = predict(GPUS["h100"], make_operations(rows), software=software).seconds
    assert (np.diff(seconds) >= -1e-12).all()


@pytest.mark.parametrize(
    "keys",
    [
        {"sequence": "4096"},
        {"sequence": "64"},
        {"requests": "[{new: 2048, context: 4096}, {new: 32, context: 0}, {new: 1, context: 900}]"},
        {"phase": "decode", "context": "4096"},
        {"phase": "decode", "context": "4096", "sequence": "4"},
        {"phase": "training", "sequence": "2048"},
    ],
)
def test_kernels_of_a_model_do_what_its_operators_do(keys):
    graph = load_workload("mistral-7b", [("layers", "1"), ("model.sliding_window", "128"), *keys.items()])
    found = predict_model(GPUS["h100"], graph)
    assert (found.flops * found.repeats).sum() == pytest.approx(2 * graph.macs, rel=1e-12)


def test_a_long_prompt_takes_its_windows_time():
    keys = [("layers", "1"), ("sequence", "131072"), ("model.sliding_window", "128")]
    graph = load_workload("mistral-7b", keys)
    whole = load_workload("mistral-7b", [*keys[:2], ("model.sliding_window", "131072")])
    bounded, full = (predict_model(GPUS["h100"], each).by_operator["layer.attention"] for each in (graph, whole))
    assert bounded < full / 50
    assert next(k.row for k in kernels_of(graph) if k.operator == "layer.attention")["window"] == 128


@given(st.sampled_from(sorted(GPUS)), st.integers(1, 8), sizes, sizes)
def test_a_window_to_both_sides_takes_no_less_than_to_one_and_no_longer_than_none(name, batch, queries, window):
    shape = HEADS | {"op": "attention_prefill", "batch": batch, "q_len": queries, "kv_len": queries}
    rows = [
        shape | {"window": window, "causal": "true"},
        shape | {"window": window, "causal": "false"},
        shape | {"causal": "false"},
    ]
    made = make_operations([row | {"dtype": "fp16"} for row in rows])
    found = mechanism(GPUS[name], made).seconds
    assert found[1] <= found[2] * (1 + 1e-9)
    assert flops(made)[0] <= flops(made)[1] <= flops(made)[2]
    assert found[0] <= found[1] * (1 + 1e-9)


def test_a_window_is_of_causal_attention_or_to_both_sides_of_as_many_queries_as_keys():
    row = HEADS | {"op": "attention_prefill", "q_len": 64, "kv_len": 80, "window": 8, "causal": "false"}
    with pytest.raises(LoomError, match="window: must be of causal attention"):
        make_operations([row])
    with pytest.raises(LoomError, match="keys that a query of attention looks at, not of gemm"):
        make_operations([{"op": "gemm", "m": 1, "n": 1, "k": 1, "window": 8}])

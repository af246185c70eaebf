"""Attention in ONNX files: whose keys and values are shared, which pairs a mask or a window lets through."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from tests.workloads.onnx_files import OnnxWriter

from siliconloom.arch import DataType, LoomError
from siliconloom.workloads import Attention, Gemm, Graph, load_workload

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attended(path: Path, query: list[int], turned: list[int], value: list[int]) -> Graph:
    """MatMul, Softmax and MatMul of operands of these shapes, keys transposed."""
    file = OnnxWriter()
    q, k, v = (file.input(name, shape) for name, shape in zip("qkv", (query, turned, value), strict=True))
    made = file.node("MatMul", file.node("Softmax", file.node("MatMul", q, k), axis=-1), v)
    return load_workload(file.save(path, made))


def test_keys_and_values_that_all_heads_share_count_once(tmp_path):
    """They counted once for each head."""
    (found,) = attended(tmp_path / "a.onnx", [1, 32, 1, 128], [1, 1, 128, 4096], [1, 1, 4096, 128]).operators()
    assert (found.batch, found.heads, found.kv_heads) == (1, 32, 1)
    assert found.kv_read_bytes == 2 * 4096 * 128 * 4


@RELAXED
@given(outer=st.lists(st.integers(1, 4), max_size=3), data=st.data(), sizes=st.tuples(*[st.integers(1, 5)] * 4))
def test_every_key_and_value_of_the_file_is_read_once(tmp_path, outer, data, sizes):
    """Whatever is broadcast: work is that of NumPy's products, and operands are as large as the file's."""
    queries, keys, width, wide = sizes

    key, value = (data.draw(st.tuples(*[st.sampled_from(sorted({1, size})) for size in outer])) for _ in range(2))
    graph = attended(tmp_path / "a.onnx", [*outer, queries, width], [*key, width, keys], [*value, keys, wide])
    every = math.prod(outer)
    assert graph.macs == every * queries * keys * (width + wide)
    first = graph.operators()[0]
    if isinstance(first, Attention):
        assert first.query_elements == every * queries * width
        assert first.kv_elements == keys * (math.prod(key) * width + math.prod(value) * wide)
        assert first.output_elements == every * queries * wide
    else:
        products = [o for o in graph.operators() if isinstance(o, Gemm)]
        assert [o.batch * o.k * o.n for o in products] == [
            math.prod(key) * width * keys,
            math.prod(value) * keys * wide,
        ]
    assert isinstance(first, Attention) == (key == value)


@pytest.mark.parametrize("batch", [2, 64])
def test_values_of_more_sequences_than_the_scores_are_no_part_of_attention(tmp_path, batch):
    """Their product was counted for one sequence."""
    graph = attended(tmp_path / "a.onnx", [1, 4, 16, 8], [1, 4, 8, 16], [batch, 4, 16, 8])
    assert graph.macs == 4 * 16 * 16 * 8 * (1 + batch)
    assert [o.kind for o in graph.operators()] == ["gemm", "vector", "gemm"]


def test_a_mask_of_more_sequences_than_the_scores_is_no_part_of_attention(tmp_path):
    file = OnnxWriter()
    q, k, v = (file.input(name, shape) for name, shape in zip("qkv", ([4, 16, 8], [4, 8, 16], [4, 16, 8]), strict=True))
    masked = file.node("Add", file.node("MatMul", q, k), file.weight("mask", 3, 1, 1, 16, value=-1e9))
    made = file.node("MatMul", file.node("Softmax", masked, axis=-1), v)
    graph = load_workload(file.save(tmp_path / "a.onnx", made))
    assert graph.macs == 4 * 16 * 16 * 8 * (1 + 3)


def attention_node(path: Path, sizes: tuple[int, int], mask: np.ndarray | None = None, **attributes: int) -> str:
    """A file of one Attention node: of 2 sequences, 4 heads that share 2 of keys and values, of 8 and 16 columns."""
    queries, keys = sizes
    file = OnnxWriter(opset=25 if any("window" in key for key in attributes) else 24)
    shapes = ([2, 4, queries, 8], [2, 2, keys, 8], [2, 2, keys, 16])
    inputs = [file.input(name, shape) for name, shape in zip("qkv", shapes, strict=True)]
    if mask is not None:
        file.weights.append(numpy_helper.from_array(mask, "mask"))
        inputs.append("mask")
    return file.save(path, file.node("Attention", *inputs, **attributes))


def seen(path: str, queries: int, keys: int) -> np.ndarray:
    """The pairs that ONNX's reference implementation computes: equal scores, and values that tell keys apart."""
    model = onnx.load(path)
    for axis, size in ((2, keys), (3, keys)):
        model.graph.input[2].type.tensor_type.shape.dim[axis].dim_value = size
    zeros = {
        name: np.zeros((2, count, length, 8), np.float32) for name, count, length in (("q", 4, queries), ("k", 2, keys))
    }
    values = np.broadcast_to(np.eye(keys, dtype=np.float32), (2, 2, keys, keys))
    (result,) = ReferenceEvaluator(model).run(None, {**zeros, "v": values})
    assert (result == result[:1, :1]).all()
    return result[0, 0] > 0


def computed(operator: Attention, keys: int) -> np.ndarray:
    """The pairs that an operator computes, as its documentation says."""
    distance = np.arange(operator.q_len)[:, None] + operator.kv_len - operator.q_len - np.arange(keys)[None]
    kept = np.broadcast_to(np.arange(keys) < operator.kv_len, distance.shape)
    if operator.causal:
        kept = kept & (distance >= 0) & (distance < (operator.window or keys))
    return kept


def can_be_said(kept: np.ndarray) -> bool:
    """Whether some operator computes these pairs."""
    (queries, keys), plain = kept.shape, {"name": "a", "block": "b", "precision": DataType.FP32, "batch": 1, "heads": 1}
    plain |= {"kv_heads": 1, "q_len": queries, "head_dim": 1, "v_head_dim": 1}
    masks = [(False, None), (True, None), *((True, window) for window in range(1, keys + 1))]
    return any(
        (computed(Attention(**plain, kv_len=count, causal=causal, window=window), keys) == kept).all()
        for count in range(1, keys + 1)
        for causal, window in masks
        if not causal or queries <= count
    )


SIDES = {
    "is_causal": st.integers(0, 1),
    "left_window_size": st.integers(-1, 9),
    "right_window_size": st.integers(-1, 9),
}


@RELAXED
@given(sizes=st.tuples(st.integers(1, 8), st.integers(1, 8)), attributes=st.fixed_dictionaries({}, optional=SIDES))
def test_an_attention_node_computes_the_pairs_of_onnxs_reference(tmp_path, sizes, attributes):
    """Both count from the first query and key; a node is refused just where no operator here computes its pairs."""
    path = attention_node(tmp_path / "a.onnx", sizes, **attributes)
    kept = seen(path, *sizes)
    if not can_be_said(kept):
        with pytest.raises(LoomError, match=r"^not supported: (causal A|an A)ttention.* of .* queries and"):
            load_workload(path)
        return
    (found,) = load_workload(path).operators()
    assert (computed(found, sizes[1]) == kept).all()
    assert found.macs == 2 * 4 * kept.sum() * (8 + 16)


@pytest.mark.parametrize(("queries", "keys", "pairs"), [(16, 20, 136), (1, 20, 1), (16, 16, 136)])
def test_causal_attention_of_fewer_queries_than_keys_sees_the_first_ones(tmp_path, queries, keys, pairs):
    (found,) = load_workload(attention_node(tmp_path / "a.onnx", (queries, keys), is_causal=1)).operators()
    assert found.macs == 2 * 4 * pairs * (8 + 16)
    assert found.kv_elements == 2 * 2 * queries * (8 + 16)


def test_long_causal_attention_needs_no_mask_of_its_size(tmp_path):
    (found,) = load_workload(attention_node(tmp_path / "a.onnx", (2**20, 2**21), is_causal=1)).operators()
    assert found.pairs == 2**19 * (2**20 + 1)


@RELAXED
@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)), causal=st.booleans(), truths=st.booleans(), data=st.data()
)
def test_constant_masks_are_read_whatever_their_type(tmp_path, sizes, causal, truths, data):
    """Truth values were refused as no constant, and a mask beside causality too."""
    queries, keys = sizes
    ahead = np.arange(keys)[None] - np.arange(queries)[:, None]
    kept = (ahead <= data.draw(st.integers(0, 3))) & (ahead > -data.draw(st.integers(1, 6)))
    kept = kept[:, : data.draw(st.integers(2, max(keys, 2)))]
    mask = kept if truths else np.where(kept, 0, -np.inf).astype(np.float32)
    path = attention_node(tmp_path / "a.onnx", sizes, mask, is_causal=int(causal))
    expected, graph = seen(path, *sizes), load_workload(path)
    (found,) = graph.operators()
    if can_be_said(expected):
        assert (computed(found, keys) == expected).all()
        assert not graph.notes
    else:
        assert found.pairs == queries * keys
        assert graph.notes == ("attention under a mask of another form computes all pairs",)


def test_masks_of_attention_are_refused_for_what_they_are(tmp_path):
    added = attention_node(tmp_path / "a.onnx", (4, 4), np.full((4, 4), 0.5, np.float32))
    with pytest.raises(LoomError, match="whose mask adds numbers to scores that it does not hide"):
        load_workload(added)
    odd = attention_node(tmp_path / "b.onnx", (4, 4), np.ones((3, 1, 1, 4), np.bool_))
    with pytest.raises(LoomError, match=r"its mask does not fit its scores|is not sound"):
        load_workload(odd)
    file = OnnxWriter(opset=24)
    inputs = [file.input(name, [2, 4, 8, 8]) for name in "qkv"]
    made = file.node("Attention", *inputs, file.input("mask", [8, 8]))
    with pytest.raises(LoomError, match="whose mask is no constant"):
        load_workload(file.save(tmp_path / "c.onnx", made))


@pytest.mark.parametrize("shapes", [([2, 6, 8], [1, 6, 8]), ([2, 6, 8], [2, 5, 8]), ([2, 6, 8], [2, 2, 6, 8])])
def test_keys_and_values_of_attention_fit_each_other(tmp_path, shapes):
    file = OnnxWriter(opset=24)
    inputs = [file.input(name, shape) for name, shape in zip("qkv", ([2, 6, 8], *shapes), strict=True)]
    path = file.save(tmp_path / "a.onnx", file.node("Attention", *inputs, q_num_heads=2, kv_num_heads=2))
    with pytest.raises(LoomError, match=r"do not fit its queries|not all 3|whose shape ONNX does not infer"):
        load_workload(path)

"""Attention in ONNX files: whose keys and values are shared, which pairs a mask or a window lets through."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.workloads.onnx_files import OnnxWriter

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

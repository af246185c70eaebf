"""ONNX files whose shapes are not found, depend on values, or have no elements: each is refused for what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from tests.workloads.onnx_files import OnnxWriter

from siliconloom.arch import LoomError
from siliconloom.workloads import load_workload

RELAXED = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused(path: Path, file: OnnxWriter, made: str) -> str:
    with pytest.raises(LoomError) as caught:
        load_workload(file.save(path, made))
    return str(caught.value)


def test_shapes_that_onnx_does_not_infer_are_no_shapes_that_depend_on_values(tmp_path):
    file = OnnxWriter(opset=21)
    operands = [file.input("x", [2, 8, 4, 4]), file.weight("scale", 8), file.weight("shift", 8)]
    text = refused(tmp_path / "a.onnx", file, file.node("GroupNormalization", *operands, num_groups=2))
    assert text.startswith("not supported: the ONNX operator GroupNormalization, whose shape ONNX does not infer")
    file = OnnxWriter(opset=21)
    made = file.node("Reshape", file.input("x", [4, 8]), file.input("shape", [2], TensorProto.INT64))
    assert "results whose shape depends on values" in refused(tmp_path / "b.onnx", file, made)


@pytest.mark.parametrize("constant", [True, False])
def test_a_resize_depends_on_values_where_its_scales_do(tmp_path, constant):
    file = OnnxWriter(opset=17)
    x = file.input("x", [1, 8, 4, 4])
    scales = file.weight("scales", 4, value=2.0) if constant else file.input("scales", [4])
    text = refused(tmp_path / "a.onnx", file, file.node("Resize", x, "", scales))
    what = "the ONNX operator Resize (" if constant else "results whose shape depends on values, "
    assert text.startswith(f"not supported: {what}")


def rows(file: OnnxWriter, size: int) -> str:
    return file.node("Relu", file.input("x", [size, 8]))


def depth(file: OnnxWriter, size: int) -> str:
    return file.node("MatMul", file.input("x", [4, size]), file.weight("w", size, 8))


def table(file: OnnxWriter, size: int) -> str:
    return file.node("Gather", file.weight("w", size, 8), file.input("ids", [4], TensorProto.INT64))


def channels(file: OnnxWriter, size: int) -> str:
    return file.node("Conv", file.input("x", [1, size, 8, 8]), file.weight("w", 4, size, 3, 3))


def mean(file: OnnxWriter, size: int) -> str:
    return file.node("GlobalAveragePool", file.input("x", [2, 3, size, 4]))


def keys(file: OnnxWriter, size: int) -> str:
    inputs = [
        file.input(name, shape) for name, shape in zip("qkv", ([1, 2, 4, 8], *[[1, 2, size, 8]] * 2), strict=True)
    ]
    return file.node("Attention", *inputs)


def fused(file: OnnxWriter, size: int) -> str:
    scores = file.node("MatMul", file.input("q", [1, 2, 4, 8]), file.input("k", [1, 2, 8, size]))
    return file.node("MatMul", file.node("Softmax", scores, axis=-1), file.input("v", [1, 2, size, 8]))


EMPTY: tuple[Callable[[OnnxWriter, int], str], ...] = (rows, depth, table, channels, mean, keys, fused)


@pytest.mark.parametrize("of", EMPTY)
def test_a_size_of_zero_is_a_size(tmp_path, of):
    """It was said to be missing, of inputs; or passed, where only weights and sums were empty."""
    file = OnnxWriter(opset=24)
    text = refused(tmp_path / "a.onnx", file, of(file, 0))
    assert "its result, or an operand, has no elements" in text
    file = OnnxWriter(opset=24)
    assert load_workload(file.save(tmp_path / "b.onnx", of(file, 3))).operators()


@RELAXED
@given(past=st.integers(0, 3), length=st.integers(1, 4))
def test_a_past_without_tokens_is_joined_with_what_follows(tmp_path, past, length):
    file = OnnxWriter()
    joined = file.node("Concat", file.input("past", [1, 2, past, 4]), file.input("x", [1, 2, length, 4]), axis=2)
    (relu,) = load_workload(file.save(tmp_path / "a.onnx", file.node("Relu", joined))).operators()
    assert relu.vector_elements == 2 * (past + length) * 4

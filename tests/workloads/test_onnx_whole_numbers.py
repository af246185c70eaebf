"""ONNX files whose numbers are whole: work on them is refused by its node, arithmetic of indices takes no time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from tests.workloads.onnx_files import OnnxWriter

from siliconloom.arch import LoomError
from siliconloom.workloads import load_workload

RELAXED = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NARROW = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}


def stored(file: OnnxWriter, name: str, *shape: int, dtype: str = "int8") -> str:
    file.weights.append(numpy_helper.from_array(np.ones(shape, dtype), name))
    return name


def matmul_integer(file: OnnxWriter) -> str:
    return file.node("MatMulInteger", file.input("x", [128, 512], TensorProto.INT8), stored(file, "w", 512, 256))


def matmul_integer_of_results(file: OnnxWriter) -> str:
    inputs = [file.input(name, [16, 16], TensorProto.INT8) for name in "xy"]
    return file.node("MatMulInteger", *inputs)


def conv_integer(file: OnnxWriter) -> str:
    x, w = file.input("x", [1, 4, 9, 9], TensorProto.UINT8), stored(file, "w", 8, 4, 3, 3, dtype="uint8")
    return file.node("ConvInteger", x, w)


def einsum(file: OnnxWriter) -> str:
    inputs = [file.input(name, [16, 16], TensorProto.INT32) for name in "xy"]
    return file.node("Einsum", *inputs, equation="ij,jk->ik")


def product(file: OnnxWriter) -> str:
    return file.node("MatMul", *(file.input(name, [16, 16], TensorProto.INT32) for name in "xy"))


def squares(file: OnnxWriter) -> str:
    return file.node("ReduceSumSquare", file.input("x", [16, 16], TensorProto.INT32), file.numbers("axes", [1]))


def image(file: OnnxWriter) -> str:
    sizes = file.numbers("sizes", [1, 3, 16, 16])
    return file.node("Resize", file.input("x", [1, 3, 8, 8], TensorProto.UINT8), "", "", sizes, mode="linear")


def slopes(file: OnnxWriter) -> str:
    return file.node("PRelu", file.input("x", [4, 8], TensorProto.INT32), stored(file, "w", 8, dtype="int32"))


def patches(file: OnnxWriter) -> str:
    sizes = [file.numbers("image", [5, 5]), file.numbers("block", [1, 5])]
    return file.node("Col2Im", file.input("x", [1, 5, 5], TensorProto.INT32), *sizes)


WHOLE: tuple[Callable[[OnnxWriter], str], ...] = (
    matmul_integer,
    matmul_integer_of_results,
    conv_integer,
    einsum,
    product,
    squares,
    image,
    slopes,
    patches,
)


def refused(file: OnnxWriter, path: object, made: str) -> str:
    """What is said of a file behind whose node stand a Cast and a ReLU, which by themselves are work."""
    found = file.node("Relu", file.node("Cast", made, to=TensorProto.FLOAT))
    with pytest.raises(LoomError) as caught:
        load_workload(file.save(path, found))
    return str(caught.value)


@pytest.mark.parametrize("work", WHOLE)
def test_work_on_whole_numbers_is_refused_by_its_node(tmp_path, work):
    file = OnnxWriter(opset=18)
    made = work(file)
    node = file.nodes[-1]
    text = refused(file, tmp_path / "a.onnx", made)
    assert text.startswith(f"not supported: the ONNX operator {node.op_type} of whole numbers (")
    assert f"node {node.name} ({node.op_type})" in text


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("kind", ["Mul", "Add", "Max", "Gather", "GatherElements"])
def test_quantised_values_and_tables_are_refused(tmp_path, kind, dtype):
    """They were taken for indices: a table of 4,096 numbers was none."""
    file = OnnxWriter(opset=18)
    if kind.startswith("Gather"):
        inputs = [stored(file, "table", 64, 64, dtype=dtype), file.input("ids", [2, 8], TensorProto.INT64)]
    else:
        inputs = [file.input(name, [4, 8], NARROW[dtype]) for name in "xy"]
    text = refused(file, tmp_path / "a.onnx", file.node(kind, *inputs))
    assert text.startswith(f"not supported: the ONNX operator {kind} of numbers in {dtype} (")


@RELAXED
@given(
    kinds=st.lists(st.sampled_from(("Add", "Sub", "Mul", "Div", "Mod", "Max", "CumSum", "Where")), max_size=6),
    dtype=st.sampled_from((TensorProto.INT64, TensorProto.INT32)),
)
def test_arithmetic_of_indices_takes_no_time(tmp_path, kinds, dtype):
    file = OnnxWriter(opset=18)
    first, second = (file.input(name, [2, 8], dtype) for name in ("ids", "others"))
    made = first
    for kind in kinds:
        if kind == "Where":
            made = file.node("Where", file.node("Less", made, second), made, second)
        elif kind == "CumSum":
            made = file.node("CumSum", made, file.numbers(f"axis_{len(file.nodes)}", 1))
        else:
            made = file.node(kind, made, second)
    rows = file.node("Gather", file.weight("table", 64, 16), made)
    (gather,) = load_workload(file.save(tmp_path / "a.onnx", rows)).operators()
    assert (gather.rows, gather.cols, gather.parameters) == (16, 16, 64 * 16)


def test_images_of_bytes_may_be_cut_and_cast(tmp_path):
    file = OnnxWriter(opset=18)
    x = file.node("Gather", file.input("x", [1, 3, 8, 8], TensorProto.UINT8), file.numbers("bgr", [2, 1, 0]), axis=1)
    x = file.node("Relu", file.node("Cast", file.node("Transpose", x, perm=[0, 2, 3, 1]), to=TensorProto.FLOAT))
    (relu,) = load_workload(file.save(tmp_path / "a.onnx", x)).operators()
    assert relu.vector_elements == 3 * 64

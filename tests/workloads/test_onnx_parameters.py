"""Parameters of ONNX files: biases that are one number or none, weights that a file splits or shares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.workloads.onnx_files import OnnxWriter

from siliconloom.arch import LoomError
from siliconloom.workloads import Gemm, Graph, load_workload

RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(
    sizes=st.tuples(*[st.integers(2, 6)] * 3),
    ones=st.sampled_from(("none", "scalar", "one", "row", "whole row", "column")),
    beta=st.sampled_from((None, 0.0, 1.0, 0.5)),
    left=st.booleans(),
)
def test_a_bias_has_the_numbers_of_the_file(tmp_path, sizes, ones, beta, left):
    """One number counted for every column, and one times zero too."""
    m, n, k = sizes
    shape = {"none": None, "scalar": (), "one": (1,), "row": (n,), "whole row": (1, n), "column": (m, 1)}[ones]
    file = OnnxWriter()
    operands = [file.weight("a", m, k), file.input("b", [k, n])]
    if not left:
        operands = [file.input("a", [m, k]), file.weight("b", k, n)]
        file.weights = file.weights[1:]
    if shape is not None:
        operands.append(file.weight("bias", *shape))
    path = file.save(tmp_path / "a.onnx", file.node("Gemm", *operands, **({} if beta is None else {"beta": beta})))
    stored = m * k if left else k * n
    if shape is None or beta == 0:
        expected = 0
    elif ones in (("row", "whole row") if left else ("column",)):
        with pytest.raises(LoomError, match="third operand is no bias of its columns"):
            load_workload(path)
        return
    else:
        expected = int(np.prod(shape))
    graph = load_workload(path)
    assert graph.parameters == stored + expected
    assert graph.weight_bytes == 4 * graph.parameters
    assert graph.macs == m * n * k


def test_a_third_operand_times_zero_is_not_made(tmp_path):
    file = OnnxWriter()
    x = file.input("x", [4, 8])
    unread = file.node("Tanh", file.input("y", [4, 10]))
    made = file.node("Gemm", x, file.weight("w", 8, 10), unread, beta=0.0)
    (product,) = load_workload(file.save(tmp_path / "a.onnx", made)).operators()
    assert (product.kind, product.parameters) == ("gemm", 80)


def products(path: Path, file: OnnxWriter, weights: Sequence[str]) -> Graph:
    """A product of one input with each of several weights of as many rows."""
    x = file.input("x", [3, 8])
    return load_workload(file.save(path, file.node("Concat", *(file.node("MatMul", x, w) for w in weights), axis=-1)))


def taken(file: OnnxWriter, of: str, begin: int, end: int, by: str) -> str:
    """Columns of a constant, by a node of some kind."""
    name = f"{by}{len(file.nodes)}"
    if by == "Gather":
        return file.node("Gather", of, file.numbers(name, range(begin, end)), axis=1)
    if by == "Negative":
        limits = (file.numbers(f"{name}.{n}", [v]) for n, v in enumerate((end - 1, begin - 1 - 12, 1, -1)))
        return file.node("Slice", of, *limits)
    return file.node("Slice", of, *(file.numbers(f"{name}.{n}", [v]) for n, v in enumerate((begin, end, 1))))


@RELAXED
@given(
    bounds=st.tuples(*[st.tuples(st.integers(0, 10), st.integers(1, 12)) for _ in range(2)]),
    kinds=st.tuples(*[st.sampled_from(("Gather", "Slice", "Negative"))] * 2),
    turned=st.booleans(),
)
def test_products_share_a_weight_where_they_read_the_same_columns(tmp_path, bounds, kinds, turned):
    """A note said so of columns of their own, too."""
    ranges = [(begin, max(begin + 1, end)) for begin, end in bounds]
    file = OnnxWriter()
    weight = file.weight("w", 12, 8) if turned else file.weight("w", 8, 12)
    weight = file.node("Transpose", weight, perm=[1, 0]) if turned else weight
    parts = [taken(file, weight, *each, kind) for each, kind in zip(ranges, kinds, strict=True)]
    graph = products(tmp_path / "a.onnx", file, parts)
    common = set(range(*ranges[0])) & set(range(*ranges[1]))
    assert bool(graph.notes) == bool(common)
    assert graph.parameters == sum(8 * (end - begin) for begin, end in ranges)


@pytest.mark.parametrize("opset", [11, 17])
def test_a_weight_that_is_split_is_not_shared(tmp_path, opset):
    file = OnnxWriter(opset=opset)
    weight = file.weight("w", 8, 12)
    if opset < 13:
        file.node("Split", weight, outputs=3, axis=1, split=[2, 4, 6])
    else:
        file.node("Split", weight, file.numbers("sizes", [2, 4, 6]), outputs=3, axis=1)
    parts = [f"split_0_out{n or ''}" for n in range(3)]
    graph = products(tmp_path / "a.onnx", file, parts)
    assert not graph.notes
    assert [o.n for o in graph.operators() if isinstance(o, Gemm)] == [2, 4, 6]
    assert graph.parameters == 8 * 12
    file = OnnxWriter(opset=opset)
    weight = file.weight("w", 8, 12)
    turned = file.node("Transpose", file.node("Transpose", weight, perm=[1, 0]), perm=[1, 0])
    (note,) = products(tmp_path / "b.onnx", file, [weight, turned]).notes
    assert note.startswith("weights that several products share count once for each of them, as those of")

"""Lists of operators of any kind: work and bytes by arithmetic, what reads what, ResNet-50, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import DescriptionError, NotSupported
from siliconloom.arch.document import Document
from siliconloom.arch.vector import VectorFunction
from siliconloom.evaluate.chip import simulate
from siliconloom.execution.walk import GraphWalk
from siliconloom.workloads import Gemm, Graph, Vector, load_workload
from siliconloom.workloads.operator_lists import FUNCTIONS, PAIRS, operator_graph

Loader = Callable[..., Graph]


def parsed(text: str) -> Graph:
    """The graph of a list of operators."""
    return operator_graph(Document.parse(text), "list")


@given(
    kind=st.sampled_from(sorted(FUNCTIONS)),
    rows=st.integers(1, 500),
    cols=st.integers(1, 500),
    batch=st.integers(1, 4),
    dtype=st.sampled_from([("int8", 1), ("bf16", 2), ("fp32", 4)]),
)
def test_functions_read_and_write_their_elements(
    kind: str, rows: int, cols: int, batch: int, dtype: tuple[str, int]
) -> None:
    name, size = dtype
    graph = parsed(
        f"kind: operators\nprecision: {name}\nbatch: {batch}\n"
        f"operators: [{{name: one, kind: {kind}, rows: {rows}, cols: {cols}}}]\n"
    )
    (operator,) = graph.operators()
    assert isinstance(operator, Vector)
    results = 1 if kind in ("row_sum", "row_max") else cols
    assert operator.input_bytes == batch * rows * cols * size * (2 if kind in PAIRS else 1)
    assert operator.output_bytes == batch * rows * results * size
    assert graph.parameters == {"layer_norm": 2, "rms_norm": 1}.get(kind, 0) * cols
    assert not graph.dataflow.linked


@given(
    channels=st.integers(1, 40),
    size=st.tuples(st.integers(3, 20), st.integers(3, 20)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    batch=st.integers(1, 3),
)
def test_pooling_has_the_windows_of_an_image(
    channels: int, size: tuple[int, int], kernel: tuple[int, int], stride: int, padding: int, batch: int
) -> None:
    padding = min(padding, min(kernel) // 2)
    image = numpy.zeros((size[0] + 2 * padding, size[1] + 2 * padding))
    windows = numpy.lib.stride_tricks.sliding_window_view(image, kernel)[::stride, ::stride]
    for kind in ("max_pool", "average_pool"):
        graph = parsed(
            f"{{kind: operators, precision: int8, batch: {batch}, operators: [{{name: one, kind: {kind}, channels: "
            f"{channels}, height: {size[0]}, width: {size[1]}, kernel: {list(kernel)}, stride: {stride}, "
            f"padding: {padding}}}]}}"
        )
        (pool,) = graph.operators()
        assert pool.input_bytes == batch * channels * windows.size
        assert pool.output_bytes == batch * channels * windows.shape[0] * windows.shape[1]
        assert graph.images == batch


def test_resnet50_has_its_published_work_and_parameters() -> None:
    graph, convolutions = load_workload("resnet50"), load_workload("resnet50-conv")
    products = [o for o in graph.operators() if isinstance(o, Gemm)]
    channels = sum(o.repeat * o.n for o in products) - 1000
    assert channels == 26_560
    assert graph.parameters == convolutions.parameters + channels + 1000 * 2049
    assert graph.parameters + channels == 25_557_032  # torchvision's: a scale and a shift of each channel
    assert graph.macs == convolutions.macs + 1000 * 2048 == 4_089_184_256
    assert sum(o.repeat for o in products) == 54
    functions = [o for o in graph.operators() if isinstance(o, Vector) for _ in range(o.repeat)]
    counts = {name: sum(o.function == name for o in functions) for name in ("relu", "add", "maximum", "combine")}
    assert counts == {"relu": 49, "add": 16, "maximum": 1, "combine": 1}
    assert load_workload("resnet50", [("batch", "8")]).macs == 8 * graph.macs


def test_results_flow_where_entries_say_so() -> None:
    flow = load_workload("resnet50").dataflow
    assert flow.predecessors("conv3_first_add") == ["conv3_first_expand", "conv3_first_downsample"]
    assert flow.predecessors("conv3_add") == ["conv3_expand", "conv3_first_relu"]
    assert flow.predecessors("classifier") == ["average_pool"]
    assert flow.predecessors("conv1") == []


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("[{name: a, kind: relu, rows: 2, cols: 2, reads: [b]}]", "'b' is no entry before 'a'"),
        (
            "[{name: a, kind: relu, rows: 2, cols: 2}, {name: b, kind: relu, rows: 2, cols: 3, reads: [a]}]",
            "'a' makes 4 elements and 'b' takes 6",
        ),
        (
            "[{name: a, kind: relu, rows: 2, cols: 2}, {name: b, kind: add, rows: 2, cols: 2, reads: [a]}]",
            "must name 2: add has 2 operands",
        ),
        ("[{name: a, kind: cumsum, rows: 2, cols: 2}]", "kind"),
        ("[{name: a, kind: softmax, rows: 2, cols: 40000}]", "at most 32768"),
        ("[{name: a, kind: max_pool, channels: 2, height: 40, width: 40, kernel: 17}]", "at most 256 values"),
        (
            "[{name: a, kind: max_pool, channels: 2, height: 8, width: 8, kernel: 3, padding: 3}]",
            "half of the kernel, 3",
        ),
        (
            "[{name: a, kind: relu, rows: 2, cols: 2, block: x}, {name: b, kind: relu, rows: 2, cols: 2, block: x, "
            "repeat: 2}]",
            "must have repeat 1",
        ),
        (
            "[{name: a, kind: relu, rows: 2, cols: 2, block: x}, {name: b, kind: relu, rows: 2, cols: 2}, "
            "{name: c, kind: relu, rows: 2, cols: 2, block: x}]",
            "has ended",
        ),
    ],
)
def test_what_does_not_fit_is_refused(load_text: Loader, entries: str, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        load_text(f"{{kind: operators, operators: {entries}}}")


PROVEN = ("add", "gelu", "layer_norm", "multiply", "relu", "rms_norm", "silu", "softmax", "tanh")


@pytest.mark.parametrize("chip", ["npu-edge-int8", "npu-edge"])
def test_functions_with_circuits_are_proven_and_no_faster_than_their_bound(load_text: Loader, chip: str) -> None:
    kinds = [*PROVEN, "row_sum", "row_max", "maximum"]
    entries = ", ".join(f"{{name: {kind}, kind: {kind}, rows: 96, cols: 160}}" for kind in kinds)
    graph = load_text(f"{{kind: operators, operators: [{entries}]}}")
    result = simulate(chip, graph).result()
    rows = {row["name"]: row for row in result["operators"]}
    assert {name for name, row in rows.items() if row["hardware_why"] is None} == set(PROVEN)
    assert all(row["cycles"] >= row["bound_cycles"] for row in rows.values())
    assert VectorFunction.MAXIMUM.spec.circuit is False


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(["add", "copy", "maximum", "multiply", "relu", "row_max", "softmax"]),
    rows=st.integers(1, 6).map(lambda n: 64 * n),
    cols=st.integers(1, 6).map(lambda n: 64 * n),
)
def test_chips_move_the_bytes_of_operands_and_results_and_no_others(kind: str, rows: int, cols: int) -> None:
    """Parameters of a function are a line of 16 lanes; one byte a row takes an access where rows do not adjoin."""
    graph = parsed(
        f"{{kind: operators, precision: int8, operators: [{{name: one, kind: {kind}, rows: {rows}, cols: {cols}}}]}}"
    )
    (operator,) = graph.operators()
    assert isinstance(operator, Vector)
    (row,) = simulate("npu-edge-int8", graph).result()["operators"]
    parameters = 64 if kind in ("add", "multiply", "softmax") else 0
    assert row["read_bytes"] == operator.input_bytes + parameters
    written = row["write_bytes"]
    assert written == operator.output_bytes or (kind == "row_max" and written % 64 == 0 and written <= 64 * rows)
    passes = 2 if kind == "softmax" else 1
    assert row["cycles"] >= row["bound_cycles"] >= passes * rows * cols // 16


@pytest.mark.parametrize("kind", ["softmax", "layer_norm", "gelu", "add", "maximum", "row_sum"])
def test_values_of_a_list_are_refused_by_name(kind: str) -> None:
    graph = parsed(f"{{kind: operators, operators: [{{name: one, kind: {kind}, rows: 16, cols: 32}}]}}")
    with pytest.raises(NotSupported, match=r"values of functions of what no operator makes .*\(operator one\)"):
        GraphWalk(graph)

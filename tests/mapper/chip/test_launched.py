"""Machines that launch operators one after the other, whose vector units have several rows to a slot, and costs."""

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import Chip, LoomError, load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Opcode, Unit
from siliconloom.arch.tile import VectorUnit
from siliconloom.arch.vector import VectorFunction
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.bounds import graph_bound
from siliconloom.rtl.npu.geometry import without_circuit
from siliconloom.sim.chip.engine import run
from siliconloom.sim.timing.units import vector_cycles
from siliconloom.workloads import load_workload
from siliconloom.workloads.operators import Attention, Gemm, Vector
from siliconloom.workloads.separated import separated

SIZES = st.integers(1, 40)
COSTS = st.builds(
    lambda passes, row_cycles, kernels: {"passes": passes, "row_cycles": row_cycles, "kernels": kernels},
    st.integers(1, 30),
    st.integers(0, 40),
    st.integers(1, 4),
)
ENTRIES = st.lists(
    st.one_of(
        st.builds(lambda m, n, k: {"kind": "gemm", "m": m, "n": n, "k": k}, SIZES, SIZES, SIZES),
        st.builds(
            lambda kind, rows, cols: {"kind": kind, "rows": rows, "cols": cols},
            st.sampled_from(["softmax", "layer_norm", "gelu", "add"]),
            SIZES,
            SIZES,
        ),
        st.builds(
            lambda shared, heads, queries, wide: {
                "kind": "attention",
                "heads": shared * heads,
                "kv_heads": heads,
                "queries": queries,
                "head_dim": wide,
            },
            st.integers(1, 2),
            st.integers(1, 2),
            SIZES,
            st.sampled_from([4, 8, 20]),
        ),
    ),
    min_size=1,
    max_size=3,
)


def graph_of(entries):
    named = [{"name": f"o{number}", **entry} for number, entry in enumerate(entries)]
    data = {"kind": "operators", "name": "some", "precision": "int8", "operators": named}
    return load_workload(Document.of(data, "some"))


def chip_of(*sets):
    return load_chip("npu-edge-int8", [("attention", "separate"), *sets])


def launched(chip: Chip, cycles: int) -> Chip:
    sequencer = chip.tile.sequencer.model_copy(update={"launch_cycles": cycles})
    return chip.model_copy(update={"tile": chip.tile.model_copy(update={"sequencer": sequencer})})


@pytest.mark.slow(seconds=3.5)
@settings(max_examples=12, deadline=None)
@given(ENTRIES, COSTS, st.integers(300, 700), st.integers(1, 500), st.sampled_from([1, 2, 4]))
def test_every_kernel_waits_for_all_results_and_its_launch(entries, cost, first, more, sublanes):
    """One program takes as many cycles more as its kernels are launched later: none overlaps what is before it.

    A launch takes longer here than handing out what stands in the queues.
    """
    costs = dict.fromkeys(("top_k", "layer_norm"), cost)
    chip = launched(chip_of(("tile.vector.sublanes", str(sublanes)), ("tile.vector.costs", str(costs))), first)
    try:
        done = simulate(chip, graph_of(entries))
    except LoomError as error:
        assume("cannot hold" not in str(error))
        raise
    program = done.plan.program
    kernels = sum(i.m for i in program.instructions if i.opcode is Opcode.BARRIER and i.unit is Unit.LOAD)
    by_row = [o for o in done.graph.operators() if isinstance(o, Vector) and o.function.value in costs]
    assert kernels == len(done.graph.operators()) + len(by_row) * (cost["kernels"] - 1)
    later = run(program, launched(chip, first + more))
    assert later.cycles - done.run.cycles == more * kernels
    assert done.run.cycles >= graph_bound(chip, done.graph).lower_bound_cycles
    event(f"{len(by_row)} functions of rows")


@settings(max_examples=25, deadline=None)
@given(ENTRIES)
def test_attention_as_operators_of_its_own_computes_all_pairs(entries):
    graph = graph_of(entries)
    apart = separated(graph)
    made = {operator.name: operator for operator in apart.operators()}
    for operator in graph.operators():
        if not isinstance(operator, Attention):
            assert made.pop(operator.name) == operator
            continue
        scores, softmax, context = (made.pop(f"{operator.name}.{part}") for part in ("scores", "softmax", "context"))
        assert isinstance(scores, Gemm)
        assert (
            scores.output_elements == softmax.rows * softmax.cols == operator.heads * operator.q_len * operator.kv_len
        )
        assert scores.macs + context.macs == operator.macs
        assert context.output_elements == operator.output_elements
        key_values = operator.kv_heads * operator.kv_len * (operator.head_dim + operator.v_head_dim)
        read = scores.input_elements + context.input_elements - softmax.output_elements
        assert read == operator.heads * operator.q_len * operator.head_dim + key_values
    assert not made


@pytest.mark.slow(seconds=1)
def test_scores_of_a_linked_attention_go_through_memory():
    """A chip that fuses it moves fewer bytes; what reads the attention reads its last part."""
    entries = [
        {"kind": "gemm", "m": 48, "n": 3 * 64, "k": 32},
        {"kind": "attention", "heads": 4, "queries": 48, "head_dim": 16},
        {"kind": "gemm", "m": 48, "n": 32, "k": 64},
    ]
    graph = graph_of(entries)
    graph.dataflow.connect("o0", "o1", 3 * 48 * 64)
    graph.dataflow.connect("o1", "o2", 48 * 64)
    apart = separated(graph)
    assert list(apart.dataflow.edges()) == [
        ("o0", "o1.scores", 2 * 48 * 64),
        ("o0", "o1.context", 48 * 64),
        ("o1.scores", "o1.softmax", 4 * 48 * 48),
        ("o1.softmax", "o1.context", 4 * 48 * 48),
        ("o1.context", "o2", 48 * 64),
    ]
    chip = chip_of()
    fused = chip.model_copy(update={"attention": "fused"})
    moved = [simulate(each, replace(graph)).run.traffic.sum() for each in (chip, fused)]
    assert moved[0] - moved[1] > 4 * 4 * 48 * 48 // 2  # at least what scores and chances are, less keys that are turned


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([f for f in VectorFunction if not f.spec.transposes and not f.spec.weighs and not f.spec.recurs]),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(1, 64),
    st.integers(1, 16),
    COSTS,
)
def test_a_function_takes_what_its_description_says_on_whole_slots(function, rows, cols, lanes, sublanes, cost):
    """Rows that are left over take as long as a whole group; what is stated counts on each slot and each group."""
    plain = VectorUnit(lanes=lanes)
    unit = VectorUnit(lanes=lanes, sublanes=sublanes, costs={function.value: cost})
    groups, blocks = -(-rows // sublanes), -(-cols // lanes)
    found = vector_cycles(unit, function, rows, cols)
    if not function.spec.indexes:  # places are written row by row
        assert found == vector_cycles(unit, function, groups * sublanes, cols)
    circuit, stated = plain.cost_of(function), unit.cost_of(function)
    apart = blocks * (stated.slot_cycles(lanes) - circuit.slot_cycles(lanes)) + cost["row_cycles"]
    once = circuit.index_lines(lanes) * (rows - groups)
    assert found == vector_cycles(plain, function, groups, cols) + groups * apart + once
    many = np.arange(1, 9)
    assert vector_cycles(unit, function, many, cols).tolist() == [
        vector_cycles(unit, function, n, cols) for n in range(1, 9)
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tile.vector.sublanes", "2"),
        ("tile.vector.costs.gelu.passes", "2"),
        ("tile.vector.costs.add.row_cycles", "1"),
        ("tile.vector.costs.softmax.kernels", "2"),
        ("tile.sequencer.launch_cycles", "1"),
        ("tile.array.load_port", "shared"),
    ],
)
def test_what_has_no_circuit_is_named(key, value):
    part = without_circuit(load_chip("npu-edge-int8", [(key, value)]))
    assert part is not None
    assert key.removesuffix(".passes").removesuffix(".row_cycles").removesuffix(".kernels") in part


def test_costs_that_are_the_circuits_are_no_reason():
    stated = [f for f in VectorFunction if f.spec.passes and not f.spec.transposes and not f.spec.weighs]
    costs = {function.value: {"passes": function.spec.passes} for function in stated}
    assert without_circuit(load_chip("npu-edge-int8", [("tile.vector.costs", str(costs))])) is None

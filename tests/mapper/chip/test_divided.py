"""Buffers that are divided anew for single tasks: what that gains, and that it is what a tile may run."""

import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.assembler import check_program, violations
from siliconloom.arch.document import Document
from siliconloom.arch.errors import DescriptionError
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Program
from siliconloom.arch.layout import is_power
from siliconloom.arch.phases import LENGTH, fences
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.choice import moved_bytes
from siliconloom.mapper.chip.decided import decision_of, mapped_as
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.drafts import drafts_of
from siliconloom.mapper.chip.layout import NotDivided
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.mapper.chip.program import draft, known_draft, lower
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.engine import Stopwatch, duration
from siliconloom.workloads import load_workload
from tests.mapper.chip.anew import divided_by_chance
from tests.mapper.chip.improvements import made_chip, odd_chip, random_chip, random_workload, workload


def names_of(plan):
    """Tasks that have buffers of their own."""
    return [name for made in plan.mapping.choice[1] for name, each in made.items() if each.divided is not None]


@pytest.mark.parametrize(
    ("chip", "model", "sets", "cycles", "moved"),
    [
        # banks that attention alone has a use for: 6,706,747 cycles and 6.8 GiB before; 5,574,697 and 5.7 with two
        # slots of sums and results that pass as whole tiles; 4,850,000 and 5.1 with two sizes of what stays in part
        ("tpu-v4", "llama3-8b", {"sequence": 2048, "layers": 1}, 4_830_000, 4.6e9),
        # in 0.7 % more time than before, with half of the bytes: 2.2 GB
        ("npu-edge-int8", "gpt2", {}, 399_900_000, 1.09e9),
    ],
)
def test_products_with_buffers_of_their_own_take_less_time_or_bytes(chip, model, sets, cycles, moved):
    found = simulate(chip, model, [(f"workload.{key}", str(value)) for key, value in sets.items()])
    assert found.seconds * found.chip.clock <= cycles
    assert moved_bytes(found.plan.mapping.parts, found.plan.mapping.choice) <= moved
    assert names_of(found.plan)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_what_is_divided_by_chance_is_legal_and_the_same_wherever_it_is_kept(seed):
    """As a program, as a file, as a decision that is remembered, and as a draft of tasks that are known."""
    r = random.Random(seed)
    chip, graph = made_chip((odd_chip if r.random() < 0.3 else random_chip)(r)), workload(random_workload(r))
    try:
        graph, _ = fit_precision(chip, graph)
        plain = map_workload(chip, graph)
    except LoomError:
        return  # the chip is too small
    try:
        plan = divided_by_chance(plain, r)
    except NotDivided:
        return  # parameters of one slot in one division only
    cycles = duration(plan.program, chip)
    broken = {str(each.error.cause) for each in violations(plan.program, chip)}
    allowed = {str(each.error.cause) for each in violations(plain.program, chip)} | {str(Cause.PROGRAM_SIZE)}
    if not is_power(chip.tile.vector.lanes):  # slots begin at multiples of lines of banks, not of such lanes
        allowed.add(str(Cause.MISALIGNED_OPERAND))
    assert broken <= allowed
    assert bool(fences(plan.program)) == bool(names_of(plan)) or len(plan.mapping.parts[0].tasks) == 1
    read = mapping_of(Document.parse(mapping_text(plan)), chip, graph)
    assert duration(lower(chip, graph, read).program, chip) == cycles
    assert names_of(lower(chip, graph, read)) == names_of(plan)
    kept = decision_of(plan)
    assert kept is None or names_of(mapped_as(kept, chip, graph)) == names_of(plan)
    known = drafts_of(chip, graph, plan.mapping.parts)
    for _ in range(2):
        assert Stopwatch(chip)(known_draft(known, graph, plan.mapping).program) == cycles
    assert Stopwatch(chip)(draft(chip, graph, plan.mapping).program) == cycles


def small():
    chip = load_chip("npu-edge-int8", [("tile.scratchpad.capacity", "64 KiB")])
    graph, _ = fit_precision(chip, load_workload("gpt2", [("layers", "1"), ("sequence", "64")]))
    return chip, graph


def test_without_its_fences_such_a_program_is_refused():
    """Each of them is needed: with any barrier of any fence left out two ports meet at a bank."""
    chip, graph = small()
    plan = divided_by_chance(map_workload(chip, graph), random.Random(1), share=1)
    check_program(plan.program, chip)
    code, begins = plan.program.instructions, fences(plan.program)
    assert len(begins) >= 4
    for begin in begins:
        for place in (begin, begin + 3, begin + LENGTH - 1):
            fewer = tuple(i for number, i in enumerate(code) if number != place)
            with pytest.raises(IllegalProgram, match=r"bank conflict|deadlock"):
                check_program(Program(fewer, plan.program.semaphores, plan.program.operators), chip)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"weights": "1 MiB"}, "too much"),
        ({"moving": "64 B"}, "a tile takes"),
        ({"banked": "1 B"}, "layout.banked"),
        ({"constants": "10 KiB"}, "the ring of constants has 2 slots elsewhere, here 1"),
        (
            {"weights": "17 KiB", "moving": "5 KiB", "results": "64 B", "constants": "9 KiB", "partial": "2 KiB"}
            | dict.fromkeys(("vector", "second", "probabilities", "chained", "gates"), "64 B"),
            "these take 20 banks",
        ),
        ({"weights": None}, "weights"),
        ({"values": "64 B", "weights": "2 KiB"}, "layer.down has no use for it"),
        ({}, "how the buffers are divided for all"),
    ],
)
def test_a_division_of_a_task_that_breaks_a_rule_is_refused_with_its_place(layout, message):
    chip, graph = small()
    described = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    index = next(at for at, task in enumerate(described["tasks"]) if task["operator"] == "layer.down")
    task = described["tasks"][index]
    task["layout"] = {ring: size for ring, size in (described["layout"] | layout).items() if size is not None}
    task["gemm"] = {"m": 16, "n": 16, "k": 64, "order": "m_outer"}
    others = [each for each in described["tasks"] if each is not task]
    for each in others:  # the place is that of the division that is wrong, not of the first one
        each.pop("layout", None)
    if layout:
        others[0]["layout"] = described["layout"] | {"weights": "1 KiB"}
    with pytest.raises(DescriptionError, match=message) as found:
        mapping_of(Document.parse(yaml.safe_dump(described)), chip, graph)
    assert f"tasks.{index}" in str(found.value)


@pytest.mark.parametrize(
    ("divided", "late", "over"),
    [("layer.up", "layer.up", "layer.feed_forward_norm"), ("layer.output", "layer.up", "layer.feed_forward_norm")],
)
def test_nothing_is_loaded_ahead_of_a_fence(divided, late, over):
    """Neither over that before a task with a division of its own, nor over that behind it."""
    chip, graph = small()
    described = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    tasks = {task["operator"]: task for task in described["tasks"]}
    for task in described["tasks"]:
        task.pop("layout", None)
        task.get("gemm", {}).pop("ahead", None)
    for name in ("layer.output", "layer.up"):
        tasks[name]["gemm"] = {"m": 16, "n": 16, "k": 64, "order": "m_outer"}
    tasks[late]["gemm"]["ahead"] = {"weights": over}
    mapping_of(Document.parse(yaml.safe_dump(described)), chip, graph)
    tasks[divided]["layout"] = described["layout"] | {"weights": "1 KiB"}
    with pytest.raises(DescriptionError, match=r"gemm.ahead.weights.* the buffers are divided otherwise there"):
        mapping_of(Document.parse(yaml.safe_dump(described)), chip, graph)


SMALL = {
    "clock": 500 * 10**6,
    "tile_count": 1,
    "tile.array.dataflow": "weight_stationary",
    "tile.array.rows": 8,
    "tile.array.cols": 128,
    "tile.array.load_rows": 2,
    "tile.scratchpad.capacity": 64 << 10,
    "tile.accumulator.capacity": 64 << 10,
    "tile.vector.lanes": 128,
    "tile.dma.bytes_per_cycle": 16,
    "memory.dram.bandwidth": 5 * 10**9,
    "memory.dram.latency": 100,
    "memory.dram.access_bytes": 256,
}
PRODUCT = """
kind: gemms
name: list
precision: int8
gemms: [{name: g, m: 512, n: 127, k: 768}]
"""


@pytest.mark.parametrize(("bus", "most"), [(16, 186_000), (32, 199_000)])
def test_small_buffers_are_divided_for_a_product(bus, most):
    """No shares had room for 64 x 127 x 112: 214,118 cycles with a bus of 16 bytes, 226,542 with one of 32."""
    chip, graph = made_chip(SMALL | {"tile.dma.bytes_per_cycle": bus}), workload(PRODUCT)
    plan = map_workload(chip, graph, Stopwatch(chip), search=False)
    assert plan.bound.lower_bound_cycles <= Stopwatch(chip)(plan.program) <= most
    assert not names_of(plan), "of a single product the program's division is its own"

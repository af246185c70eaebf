"""What is kept from map to map: chips that agree in the keys have the same programs, and take the same time."""

import json
import random

import numpy as np
import pytest

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.isa import Opcode
from siliconloom.evaluate import timed
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip import drafts, looked
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.bounds import operator_bound
from siliconloom.mapper.chip.choice import choose_layouts
from siliconloom.mapper.chip.divisions import divisions_of
from siliconloom.mapper.chip.drafts import DraftsOf, KnownDrafts, lowering_key
from siliconloom.mapper.chip.mapping import _in_a_row, fit_precision, map_workload
from siliconloom.mapper.chip.program import Mapping, blocks_of, draft, known_draft
from siliconloom.sim.chip.engine import Stopwatch, duration
from siliconloom.sim.chip.tables import build_tables, timing_key
from siliconloom.workloads import Attention, load_workload
from tests.in_turn import in_turn
from tests.mapper.chip.improvements import KIB, made_chip, random_chip, random_workload, workload

CHANGES = {
    "clock": lambda r: r.choice([250, 500, 800, 1000]) * 10**6,
    "memory.dram.bandwidth": lambda r: r.choice([3, 5, 12, 25, 100, 400, 3000]) * 10**9,
    "memory.dram.latency": lambda r: r.choice([5, 20, 100, 500]),
    "memory.dram.ports": lambda r: r.choice([1, 2, 4]),
    "memory.dram.access_bytes": lambda r: r.choice([16, 32, 64, 256]),
    "tile.scratchpad.capacity": lambda r: r.choice([64, 128, 256, 512, 1024, 8192]) * KIB,
    "tile.accumulator.capacity": lambda r: r.choice([16, 64, 256, 1024]) * KIB,
    "tile.vector.lanes": lambda r: r.choice([4, 8, 16, 32, 64]),
    "tile.dma.bytes_per_cycle": lambda r: r.choice([16, 64, 256]),
    "tile.array.rows": lambda r: r.choice([4, 8, 16, 32]),
    "tile.array.cols": lambda r: r.choice([4, 8, 16, 32]),
    "tile.sequencer.issue_cycles": lambda r: r.choice([1, 4, 9]),
    "tile.sequencer.queue_depth": lambda r: r.choice([2, 8]),
    "tile_count": lambda r: r.choice([1, 2, 4]),
}
TIMING = (
    "clock",
    "memory.dram.bandwidth",
    "memory.dram.latency",
    "tile.scratchpad.capacity",
    "tile.accumulator.capacity",
)
"""Keys that a program depends on little, or not at all."""
MODEL = "smollm2-135m"
SHAPES = (
    {"layers": 1, "sequence": 37},
    {"layers": 2, "sequence": 100},
    {"layers": 1, "sequence": 333},
    {"layers": 1, "phase": "decode", "context": 203},
    {"layers": 1, "phase": "decode", "context": 70, "batch": 2},
    {"layers": 1, "sequence": 640},
)


def changed(r, base, most):
    """The chip with up to so many keys changed, those of timing more often than others."""
    keys = r.sample(TIMING, r.randint(1, 2)) + r.sample(sorted(CHANGES), r.randint(0, most))
    return base | {key: CHANGES[key](r) for key in keys}


def small(r):
    return load_workload(MODEL, [(key, str(value)) for key, value in r.choice(SHAPES).items()])


def plain(program):
    """The instructions without addresses of local memory."""
    names = [name for name in program.instructions[0].__struct_fields__ if name not in ("a", "b", "c", "d", "operator")]
    rows = [tuple(getattr(each, name) for name in names) for each in program.instructions]
    return (
        rows,
        [each.d.base for each in program.instructions if each.opcode is Opcode.MATMUL],
        program.semaphores,
        program.tiles,
    )


def forget():
    drafts.forget()
    looked.forget()
    timed.forget()


def _asked(r, key):
    if key.endswith("access_bytes"):  # last panels of columns are as wide as memory moves at least
        product = {"name": "g", "m": r.choice([1, 64]), "n": r.choice([70, 127, 203]), "k": 256}
        return workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": [product]}))
    return small(r) if r.random() < 0.5 else workload(random_workload(r))


@pytest.mark.parametrize("key", in_turn(sorted(CHANGES), 0, seconds=1))
def test_equal_keys_have_equal_divisions(key):
    """Ways to divide the buffers are those that a chip finds by itself, whatever was found for another before."""
    r, compared, found = random.Random(f"divisions {key}"), 0, 0
    for _ in range(12):
        base = random_chip(r)
        try:
            one, other = made_chip(base), made_chip(base | {key: CHANGES[key](r)})
            graph, _ = fit_precision(one, _asked(r, key))
            parts = blocks_of(one, graph, None)
        except LoomError:
            continue
        if blocks_of(other, graph, None) != parts or lowering_key(one, graph) != lowering_key(other, graph):
            continue
        tasks, known = [task for part in parts for task in part.tasks], {}
        for chip in (one, other):
            bounds = [operator_bound(chip, task.operator, task.fused) for task in tasks]
            for frugal, runs in ((False, True), (True, True), (False, False)):
                asked = {"frugal": frugal, "simulated": runs}
                before = len(known)
                mine = divisions_of(chip, chip.tile, tasks, bounds, **asked, known=known)
                assert mine == divisions_of(chip, chip.tile, tasks, bounds, **asked)
                found += chip is other and len(known) == before
        compared += 1
    if key in TIMING:
        assert compared
    if key in ("clock", "memory.dram.bandwidth"):
        assert found  # what was found for the first one served the second


@pytest.mark.parametrize("key", in_turn(sorted(CHANGES), 0, seconds=2))
def test_equal_keys_have_equal_programs(key):
    """A task is lowered as one chip would and as another does, for whatever candidate of the first one's."""
    r, compared = random.Random(key), 0
    for _ in range(10):
        base = random_chip(r) | {"tile.array.dataflow": "weight_stationary", "tile.array.load_rows": 1}
        try:
            one, other = made_chip(base), made_chip(base | {key: CHANGES[key](r)})
            graph, _ = fit_precision(one, _asked(r, key))
            parts = blocks_of(one, graph, None)
            choices, rivals, _ = choose_layouts(one, one.tile, graph, parts, None)
        except LoomError:
            continue
        if blocks_of(other, graph, None) != parts or lowering_key(one, graph) != lowering_key(other, graph):
            continue
        known = KnownDrafts()
        mine, its = DraftsOf(one, known), DraftsOf(other, known)
        layout = choices[0][0]
        for part in parts:
            for task in part.tasks:
                levels = part.levels[task.operator.name]
                every = rivals(layout, task.operator.name, levels)
                staying = [each for each in every if getattr(each.tiling, "order", "") == "m_kept"]
                for chosen in [*every[:2], *staying[:4]]:
                    forms = [each.form(task, chosen, layout) for each in (mine, its)]
                    if forms[0] != forms[1] or mine.rings(layout) != its.rings(layout):
                        continue
                    made = [_in_a_row(chip, graph, 2, task, levels, layout, chosen).program for chip in (one, other)]
                    assert plain(made[0]) == plain(made[1]), (base, task.operator.name)
                    compared += 1
    assert compared > 20 or key not in TIMING


def test_chips_that_cut_blocks_of_keys_otherwise_have_other_keys():
    """Whether rows of a block are loaded one by one follows from what a transfer more costs beside its bytes."""
    narrow = json.loads(random_workload(random.Random(0)))
    assert narrow["kind"] == "transformer"
    narrow["model"] |= {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4}
    graph, cuts = workload(json.dumps(narrow)), {}
    for bandwidth in ("1 GB/s", "5 GB/s", "25 GB/s"):
        sets = [("memory.dram.access_bytes", "4"), ("tile.dma.bytes_per_cycle", "16")]
        chip = load_chip("npu-edge-int8", [*sets, ("memory.dram.bandwidth", bandwidth)])
        fitted, _ = fit_precision(chip, graph)
        layout = AttentionLayout.of(chip, next(o for o in fitted.operators() if isinstance(o, Attention)))
        cut = tuple(tuple(layout.key_parts(keys)) for keys in range(1, 3 * layout.block))
        cuts.setdefault(lowering_key(chip, fitted), set()).add(cut)
    assert all(len(some) == 1 for some in cuts.values())
    assert len(set.union(*cuts.values())) == len(cuts) > 1


@pytest.mark.parametrize("case", in_turn(range(4), 0, seconds=3))
def test_known_drafts_take_as_long_as_they_do_with_nothing_known(case):
    """Of a whole workload, with any candidates of its tasks: rows and cycles are those of the program lowered anew."""
    r, compared = random.Random(f"known {case}"), 0
    while compared < 12:
        try:
            chip = made_chip(random_chip(r))
            graph, _ = fit_precision(chip, small(r) if case % 2 else workload(random_workload(r)))
            parts = blocks_of(chip, graph, None)
            choices, rivals, _ = choose_layouts(chip, chip.tile, graph, parts, None)
        except LoomError:
            continue
        known, watch = DraftsOf(chip, KnownDrafts()), Stopwatch(chip)
        for _ in range(6):
            layout = r.choice(choices)[0]
            made = [{name: r.choice(rivals(layout, name, some)) for name, some in p.levels.items()} for p in parts]
            mapping = Mapping(parts, (layout, made))
            try:
                anew, mine = draft(chip, graph, mapping).program, known_draft(known, graph, mapping).program
            except LoomError:
                continue
            assert np.array_equal(build_tables(mine, chip).instructions, build_tables(anew, chip).instructions)
            assert watch(mine) == duration(anew, chip)
            compared += 1


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("seed", range(3))
def test_what_others_left_behind_changes_nothing(seed):
    """Chips one after the other, as points of a sweep are, beside each of them with nothing known."""
    r, base = random.Random(seed), random_chip(random.Random(seed)) | {"tile.scratchpad.capacity": 1024 * KIB}
    graph, chips, found = small(r), [base, *(changed(r, base, 1) for _ in range(7))], []
    forget()
    for chip in chips:
        found.append(_figures(chip, graph))
    for chip, known in zip(chips, found, strict=True):
        forget()
        assert _figures(chip, graph) == known


def _figures(chip, graph):
    try:
        done = simulate(made_chip(chip), graph)
    except LoomError as error:
        return str(error)
    tilings = [(task.tiling, task.runs, task.tiles) for task in done.plan.tasks]
    result = done.result()
    del result["simulator"]
    return done.plan.program, tilings, done.plan.bound, done.plan.memory.items, result


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("seed", range(3))
def test_a_chip_takes_as_long_as_the_same_of_its_pace(seed):
    """No memory that is faster than the buses changes a mapping or a cycle, and no energy does."""
    r, faster = random.Random(seed), 0
    while faster < 4:
        try:
            chip = made_chip(random_chip(r) | {"memory.dram.bandwidth": r.choice([100, 400, 3000]) * 10**9})
            slow, graph = timed.paced(chip), small(r)
            if slow.nearest.bandwidth == chip.nearest.bandwidth:
                continue
            forget()
            one = map_workload(chip, graph, Stopwatch(chip), search=False)
            forget()
            other = map_workload(slow, graph, Stopwatch(slow), search=False)
        except LoomError:
            continue
        assert one.program == other.program
        assert one.bound == other.bound
        assert [each.runs for each in one.tasks] == [each.runs for each in other.tasks]
        assert duration(one.program, chip) == duration(other.program, slow)
        faster += 1


@pytest.mark.slow(seconds=1)
def test_equal_keys_of_timing_have_equal_cycles():
    """A draft that was timed on one chip is not timed on another one of the same key."""
    r, equal = random.Random(5), 0
    program = map_workload(load_chip("npu-edge-int8"), small(r)).program
    while equal < 30:
        base = random_chip(r) | {"tile.array.load_rows": 1}
        one, other = made_chip(base), made_chip(changed(r, base, 0))
        if timing_key(one) == timing_key(other):
            assert duration(program, one) == duration(program, other)
            equal += 1


@pytest.mark.slow(seconds=2)
def test_old_drafts_make_room(monkeypatch):
    """What is kept stays within its limit, whatever a sweep asks for."""
    monkeypatch.setattr(drafts, "MOST_INSTRUCTIONS", 3000)
    monkeypatch.setattr(timed, "MOST_INSTRUCTIONS", 1000)
    r = random.Random(1)
    graph, base = small(r), random_chip(r) | {"tile.scratchpad.capacity": 1024 * KIB}
    forget()
    for lanes in (4, 8, 16, 32):
        simulate(made_chip(base | {"tile.vector.lanes": lanes}), graph)
    assert len(drafts._KEPT) <= 2
    assert sum(len(each.plan.program.instructions) for each in timed._KEPT.values()) <= 1000 or len(timed._KEPT) == 1
    forget()

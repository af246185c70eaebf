"""Changes of whole mappings: what is found is legal, is what its description says, and is never worse."""

import json
import random
from functools import cache

import pytest
from hypothesis import given, settings
from msgspec.structs import asdict, replace

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.document import Document
from siliconloom.arch.interrupts import CompilationInterrupted
from siliconloom.evaluate import objectives
from siliconloom.mapper.chip.budget import Budget
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.local_search import _LocalSearch, improved
from siliconloom.mapper.chip.mapping import INTERRUPTED, fit_precision, map_workload
from siliconloom.mapper.chip.objective import in_time
from siliconloom.mapper.chip.program import Mapping, lower
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import load_workload
from tests.execution.models import chip_of, config_of, drawn_models, graph_of
from tests.in_turn import examples, in_turn
from tests.mapper.chip.improvements import made_chip, random_chip, random_workload, workload

SHORT = 200
"""Instructions of a program that the assembler checks in a second."""


def again(plan):
    """The program that a mapping's own description is lowered to."""
    mapping = mapping_of(Document.parse(mapping_text(plan)), plan.chip, plan.graph)
    return lower(plan.chip, plan.graph, mapping).program


def cost_of(plan):
    return Stopwatch(plan.chip)(plan.program)


@pytest.mark.parametrize("case", in_turn(range(9), 0))
def test_a_mapping_that_is_found_is_what_its_description_says_and_costs_no_more(case, seed):
    r = random.Random(f"{seed} {case}")
    chip, graph = made_chip(random_chip(r)), workload(random_workload(r))
    try:
        plan = map_workload(chip, graph, Stopwatch(chip), search=False)
    except LoomError:  # no tile fits
        return
    fitted, _ = fit_precision(chip, graph)
    ways = [in_time(Stopwatch(chip)), objectives.least_traffic(chip), objectives.least_energy(chip, fitted)]
    objective = ways[case % 3]
    found = improved(plan, objective, Budget(trials=60, seed=case))
    local = found.searched.local
    assert objective.measure(found.program) == local.last <= local.first == objective.measure(plan.program)
    assert (local.kept > 0) == (found.program != plan.program)
    assert local.refused <= local.tried <= 60
    assert again(found) == found.program
    if case % 4 == 0:
        twin = improved(plan, objective, Budget(trials=60, seed=case))
        assert (twin.program, twin.searched.local.tried) == (found.program, local.tried)


@examples(2, 16, seconds=16)
def test_what_is_found_is_legal_on_any_array(examples, tmp_path_factory):
    @settings(max_examples=examples, deadline=None)
    @given(**drawn_models(shortest=1))
    def holds(family, shape, dataflow, bus, dim, length, decode, dtype, seed):
        sets = [("phase", "decode"), ("context", str(length + 1))] if decode else [("sequence", str(length))]
        graph = graph_of(
            tmp_path_factory.mktemp("model"), config_of(family, 4, 2, dim, 1), [*sets, ("precision", dtype)]
        )
        chip = chip_of(*shape, bus, dataflow=dataflow, dtype=dtype)
        plan = map_workload(chip, graph, Stopwatch(chip), search=False)
        found = improved(plan, in_time(Stopwatch(chip)), Budget(trials=40, seed=seed))
        assert again(found) == found.program
        if len(found.program.instructions) <= SHORT:
            check_program(found.program, chip)

    holds()


SLOW = {
    # tiles of an eighth of what there is room for, in every task
    "product": ("npu-edge-int8", {"kind": "gemms", "gemms": [{"name": "g", "m": 512, "n": 512, "k": 512}]}),
    "two products": (
        "npu-edge-int8",
        {"kind": "gemms", "gemms": [{"name": f"g{n}", "m": 256, "n": 512, "k": 256} for n in range(2)]},
    ),
}


def slow_plan(name):
    """A mapping of small tiles in small buffers, as the search without limits would have left it."""
    chip, document = SLOW[name]
    chip = load_chip(chip)
    graph = workload(json.dumps({"name": name, "precision": "int8", **document}))
    plan = map_workload(chip, graph, Stopwatch(chip), search=False)
    rows, cols = chip.tile.array.rows, chip.tile.array.cols
    sizes = {"m": rows, "n": cols, "k": rows, "order": "n_outer"}
    tasks = [{"operator": each["name"], "gemm": sizes} for each in document["gemms"]]
    layout = {ring: f"{size} B" for ring, size in asdict(plan.layout).items() if size}
    given_ = json.dumps({"kind": "mapping", "layout": layout, "tasks": tasks})
    made = lower(chip, plan.graph, mapping_of(Document.parse(given_), chip, plan.graph))
    return replace(made, searched=plan.searched), plan


@pytest.mark.parametrize("name", in_turn(SLOW, 0))
def test_a_slow_mapping_becomes_as_fast_as_the_mappers(name, seed):
    slow, best = slow_plan(name)
    assert cost_of(slow) > 1.5 * cost_of(best)
    # one seed in a dozen ends in a division of the buffers that few changes lead out of
    every = (improved(slow, in_time(Stopwatch(slow.chip)), Budget(400, seed=seed + 1000 * n)) for n in range(3))
    assert any(cost_of(found) < 1.1 * cost_of(best) for found in every)


@pytest.mark.slow(seconds=2)
def test_the_better_one_of_several_beginnings_is_gone_on_with(seed):
    slow, best = slow_plan("product")
    clock = in_time(Stopwatch(slow.chip))
    assert cost_of(improved(best, clock, Budget(trials=20, seed=seed), [slow])) <= cost_of(best)
    # one that costs far more than what is asked about is not begun with
    few = improved(best, clock, Budget(trials=20, seed=seed), [slow]).searched.local
    assert few.first == cost_of(best)


@cache
def planned(chip, model, sets):
    """A mapping that several searches begin from."""
    chip = effective(load_chip(chip))
    return map_workload(chip, load_workload(model, list(sets)), Stopwatch(chip), search=False)


def searching(chip="npu-datacenter", model="llama3-8b", sets=(("layers", "1"), ("sequence", "256"))):
    plan = planned(chip, model, sets)
    made = _LocalSearch(plan, cost_of(plan), in_time(Stopwatch(plan.chip)), Budget())
    made._begin()
    return made


@pytest.mark.parametrize("move", in_turn(["_changed", "pair", "_squeezed", "_turned_ring"], 0, seconds=3))
def test_every_kind_of_change_gives_legal_mappings(move):
    made = searching()
    layout, chosen = made.mapping.choice
    places = list(made.shapes)
    legal = 0
    for number in range(60):
        at = places[number % len(places)]
        if move == "_squeezed" and made.shapes[at].moves is None:
            continue
        asked = {
            "_changed": lambda at=at: made._changed([at]),
            "pair": lambda at=at: made._changed([at, places[places.index(at) - 1]]),
            "_squeezed": lambda at=at: made._squeezed(at),
            "_turned_ring": made._turned_ring,
        }
        proposed = asked[move]()
        if proposed is None:
            continue
        divided, changes = proposed
        tiled = [{**each, **{name: new for (_, name), new in changes.items()}} for each in chosen]
        mapping = Mapping(made.mapping.parts, (divided, tiled))
        plan = lower(made.chip, made.plan.graph, mapping)
        assert again(plan) == plan.program
        legal += 1
        if move == "_turned_ring":
            assert (divided.values > 0) != (layout.values > 0)
    assert legal >= 5
    if move == "pair":
        assert len(changes) <= 2


@pytest.mark.slow(seconds=1)
def test_room_is_taken_from_other_tasks():
    """One task's larger tile goes with smaller ones of others."""
    made = searching("npu-edge-int8", "gpt2")
    products = [at for at, shape in made.shapes.items() if shape.moves is not None]
    several = [found for number in range(200) if (found := made._squeezed(products[number % len(products)]))]
    assert any(len(changes) > 1 for _, changes in several)


@pytest.mark.parametrize("after", [1, 2, 30])
def test_an_interrupted_local_search_returns_the_best_so_far_and_says_so(after):
    slow, _ = slow_plan("product")
    clock, calls = Stopwatch(slow.chip), []

    def cycles(program):
        calls.append(program)
        if len(calls) == after:
            raise KeyboardInterrupt
        return clock(program)

    found = improved(slow, in_time(cycles), Budget(trials=400))
    assert len(calls) == after
    assert found.searched.interrupted
    assert found.notes[-1] == INTERRUPTED
    local = found.searched.local
    if after > 1:
        assert cost_of(found) == local.last <= local.first == cost_of(slow)
    assert (cost_of(found) < cost_of(slow)) == (after == 30)


def test_an_interrupted_compilation_is_no_end_of_a_local_search():
    slow, _ = slow_plan("product")

    def cycles(program):
        raise CompilationInterrupted

    with pytest.raises(CompilationInterrupted):
        improved(slow, in_time(cycles), Budget(trials=400))


@pytest.mark.slow(seconds=1)
def test_a_budget_of_time_is_kept_and_progress_is_told():
    chip = load_chip("npu-edge-int8")
    plan = map_workload(
        chip, load_workload("gpt2", [("layers", "1"), ("sequence", "64")]), Stopwatch(chip), search=False
    )
    told = []
    found = improved(plan, in_time(Stopwatch(chip)), Budget(trials=1, seconds=0.3, advance=told.append))
    local = found.searched.local
    assert local.tried > 1
    assert 0.3 <= local.seconds < 2
    assert told == sorted(told)
    assert told[0] < 0.1
    assert told[-1] == 1


def test_parts_of_a_budget_share_its_time_and_its_bar():
    told = []
    whole = Budget(trials=9, seconds=8.0, seed=5, advance=told.append)
    second = whole.part(1, 2)
    assert (second.trials, second.seconds, second.seed) == (9, 4.0, 5)
    third = second.portion(0.5, 1.0)
    assert (third.trials, third.seconds) == (5, 2.0)
    third.advance(0.5)
    assert told == [0.5 + 0.75 / 2]


def test_nothing_is_looked_for_where_nothing_can_be_gained():
    """A mapping that is at its bound is left as it is."""
    plan, _ = slow_plan("product")
    clock = in_time(Stopwatch(plan.chip))
    for above, tried in ((1.0, 0), (1.0005, 0), (1.01, 5)):
        made = _LocalSearch(plan, above * plan.bound.lower_bound_cycles, clock, Budget(trials=5))
        made.run()
        assert made.effort.tried == tried

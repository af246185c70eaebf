"""``--search`` ends with changes of the mapping: no worse than without, no slower than another objective's mapping."""

import json
import random
from pathlib import Path

import pytest

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.document import Document
from siliconloom.cli import main
from siliconloom.evaluate import objectives
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.mapping import load_plan, plan_summary
from siliconloom.evaluate.objectives import budget_of, figure, map_for
from siliconloom.mapper.chip.budget import TRIALS, Budget
from siliconloom.mapper.chip.mapping import INTERRUPTED
from siliconloom.mapper.chip.objective import OBJECTIVES
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.workloads import load_workload
from tests.mapper.chip.improvements import made_chip, random_chip, random_workload, workload

SMALL = [("workload.layers", "1"), ("workload.sequence", "64")]


def small(model="gpt2"):
    return load_workload(model, [("layers", "1"), ("sequence", "64")])


@pytest.mark.parametrize(
    ("case", "objective"),
    [pytest.param(case, each, marks=pytest.mark.slow(seconds=8)) for case in range(2) for each in OBJECTIVES],
)
def test_a_search_is_no_worse_than_without_it_and_than_without_changes(objective, case, seed):
    r = random.Random(f"{seed} {case}")
    chip, graph = made_chip(random_chip(r)), workload(random_workload(r))
    try:
        plain = map_for(objective, chip, graph)
    except LoomError:
        return
    unchanged = map_for(objective, chip, graph, search=Budget(trials=0))
    assert unchanged.searched.local.tried == 0
    found = map_for(objective, chip, graph, search=Budget(trials=20))
    assert figure(objective, found) <= figure(objective, unchanged) <= figure(objective, plain)
    local = found.searched.local
    assert (local.first, local.last) == (figure(objective, unchanged), figure(objective, found))
    assert found.objective == objective


@pytest.mark.slow(seconds=9)
@pytest.mark.parametrize("case", range(4))
def test_no_other_objectives_mapping_is_faster_than_a_search(case):
    r = random.Random(case)
    chip, graph = made_chip(random_chip(r)), workload(random_workload(r))
    try:
        others = [simulate(chip, graph, objective=each).run.cycles for each in OBJECTIVES]
    except LoomError:
        return
    assert simulate(chip, graph, search=True).run.cycles <= min(others)


@pytest.mark.slow
def test_the_note_and_json_say_what_was_tried(tmp_path, capsys):
    file, sets = str(tmp_path / "m.json"), [f"--set={path}={value}" for path, value in SMALL]
    assert main(["map", "npu-edge-int8", "bert-base", *sets, "--search", "--seed", "7", "--json", file]) == 0
    result = json.loads(Path(file).read_text())
    local = result["local_search"]
    assert set(local) == {"tried", "refused", "kept", "first", "last", "seconds", "seed"}
    assert (local["tried"], local["seed"], local["last"]) == (TRIALS, 7, result["cycles"])
    gain = 1 - local["last"] / local["first"]
    note = f"local search: {local['tried']} changes of the mapping simulated (seed 7), {local['kept']} kept: {gain:.2%}"
    assert [each for each in result["notes"] if "local search" in each] == [f"{note} less time"]
    assert note in " ".join(capsys.readouterr().out.split())
    plan, _ = load_plan("npu-edge-int8", "bert-base", SMALL)
    assert plan_summary(plan)["local_search"] is None


@pytest.mark.slow(seconds=6)
def test_the_same_seed_is_the_same_mapping_and_another_one_may_not_be():
    chip, graph = load_chip("npu-edge-int8"), load_workload("smollm2-135m", [("layers", "1"), ("sequence", "32")])
    texts = [mapping_text(map_for("time", chip, graph, search=Budget(trials=30, seed=seed))) for seed in (0, 0, 1)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


@pytest.mark.slow(seconds=4)
def test_ctrl_c_in_the_local_search_keeps_the_best_and_says_so(monkeypatch):
    chip, graph = load_chip("npu-edge-int8"), small()
    calls = []

    def stopped(share):
        calls.append(share)
        if len(calls) == 50:
            raise KeyboardInterrupt

    done = simulate(chip, graph, search=Budget(advance=stopped))
    assert len(calls) == 50
    assert done.plan.searched.interrupted
    notes = done.result()["notes"]
    assert INTERRUPTED in notes
    assert any("local search" in note for note in notes)
    assert done.run.cycles <= simulate(chip, graph).run.cycles


@pytest.mark.slow(seconds=10)
def test_ctrl_c_ends_both_ways_of_tiles_that_join():
    chip = load_chip("neupims-device")
    graph = load_workload("gpt2", [("layers", "1"), ("sequence", "8"), ("precision", "fp16")])
    calls = []

    def stopped(share):
        calls.append(share)
        raise KeyboardInterrupt

    assert simulate(chip, graph, search=Budget(advance=stopped)).plan.searched.interrupted
    assert len(calls) == 1
    told = []
    simulate(chip, graph, search=Budget(trials=5, advance=told.append))
    assert told == sorted(told)
    assert any(share < 0.5 for share in told)
    assert any(share > 0.5 for share in told)


@pytest.mark.slow
def test_a_product_of_energy_and_time_that_grew_is_left(monkeypatch):
    """The search minimises a sum that stands for the product; what comes of it counts by the product."""
    chip, graph = load_chip("npu-edge-int8"), small()
    best = map_for("edp", chip, graph, search=Budget(trials=0))
    worse = map_for("time", load_chip("npu-edge-int8", [("tile.scratchpad.capacity", "64 KiB")]), graph)
    assert figure("edp", worse) > figure("edp", best)
    inside = objectives.improved

    def grown(plan, *asked):
        made = inside(plan, *asked)
        return objectives.replace(worse, searched=made.searched, notes=made.notes)

    monkeypatch.setattr(objectives, "improved", grown)
    kept = map_for("edp", chip, graph, search=Budget(trials=1))
    assert kept.program == best.program
    assert kept.searched.local.kept == 0
    assert kept.searched.local.first == kept.searched.local.last


@pytest.mark.slow
@pytest.mark.parametrize("sequence", ["64"])
def test_a_chip_with_several_memory_levels_is_searched(sequence, tmp_path):
    graph = load_workload("gpt2", [("layers", "2"), ("sequence", sequence)])
    done = simulate("npu-cxl", graph, search=Budget(trials=80))
    assert done.plan.searched.local.tried == 80
    assert done.run.cycles <= simulate("npu-cxl", graph).run.cycles
    again = simulate("npu-cxl", graph, mapping=Document.parse(mapping_text(done.plan)))
    assert again.plan.program == done.plan.program


def test_a_bare_array_has_nothing_to_change():
    plan = map_for("time", load_chip("systolic-ws-8"), load_workload("gpt2-block-gemms"), search=True)
    assert plan.searched is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--search-time 0", "--search-time: a number of seconds above 0 (got 0)"),
        ("--search-time -2", "--search-time: a number of seconds above 0 (got -2)"),
        ("--search-time nan", "--search-time: a number of seconds above 0 (got nan)"),
        ("--search-time inf", "--search-time: a number of seconds above 0 (got inf)"),
        ("--seed 3", "--seed is of a search; add --search"),
    ],
)
@pytest.mark.parametrize("command", ["map", "sim"])
def test_lengths_that_are_none_are_refused(command, options, message, capsys):
    assert main([command, "npu-edge", "gpt2", *options.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_time_implies_a_search(capsys):
    assert budget_of(False) is False
    assert budget_of(True) == Budget()
    assert budget_of(False, 2.0, 4) == Budget(seconds=2.0, seed=4)
    sets = [f"--set={path}={value}" for path, value in SMALL]
    assert main(["sim", "npu-edge-int8", "gpt2", *sets, "--search-time", "0.2"]) == 0
    assert "local search" in capsys.readouterr().out
    assert main(["sim", "h100", "gpt2", "--search-time", "0.2"]) == 2
    assert "--search for GPUs" in capsys.readouterr().err

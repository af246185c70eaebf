"""What a byte of main memory's traffic is worth where time counts."""

import json

import pytest

from siliconloom.arch import load_chip
from siliconloom.evaluate.objectives import moved
from siliconloom.mapper.chip import divided, mapping, price
from siliconloom.mapper.chip.choice import cost_of, moved_bytes
from siliconloom.mapper.chip.chosen import INTERRUPTED
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.mapper.chip.objective import in_time
from siliconloom.mapper.chip.price import PART, fewest_bytes, price_of_byte
from siliconloom.sim.chip.engine import Stopwatch, run
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import load_workload
from tests.mapper.chip.improvements import workload

CASES = [
    # chip, model, prompt, most of the bytes that the fastest moves
    ("npu-edge-int8", "llama2-7b", 128, 0.65),
    ("npu-datacenter", "smollm2-135m", 2048, 0.65),
    ("npu-edge", "bert-base", 512, 0.7),
    ("npu-balanced", "llama3-8b", 2048, 0.7),
]


def mapped(chip, model, length):
    machine = effective(load_chip(chip))
    return map_workload(machine, load_workload(model, [("sequence", str(length))]), Stopwatch(machine), search=False)


@pytest.mark.parametrize(("chip", "model", "length", "most"), CASES)
def test_bytes_are_saved_that_take_hardly_any_time(chip, model, length, most, monkeypatch):
    """Beside the mapping where bytes are worth nothing: run by run, not by estimates."""
    made = mapped(chip, model, length)
    monkeypatch.setattr(price, "PART", 0.0)
    fastest = mapped(chip, model, length)
    ours, theirs = (run(plan.program, plan.chip) for plan in (made, fastest))
    assert moved(ours) <= most * moved(theirs)
    assert ours.cycles <= 1.01 * theirs.cycles


@pytest.mark.parametrize(("chip", "model", "length"), [("npu-edge-int8", "llama2-7b", 128), ("npu-edge", "gpt2", 512)])
def test_what_a_plan_costs_is_its_run_and_the_price_of_what_it_moves(chip, model, length):
    made = mapped(chip, model, length)
    machine, graph = made.chip, fit_precision(made.chip, made.graph)[0]
    per_byte = price_of_byte(machine, graph, made.mapping.parts)
    least, fewest = made.bound.lower_bound_cycles, fewest_bytes(machine, made.mapping.parts)
    assert per_byte * fewest == pytest.approx(PART * least)
    time, done = in_time(Stopwatch(machine), per_byte), run(made.program, machine)
    assert moved_bytes(made.mapping.parts, made.mapping.choice) == pytest.approx(moved(done), rel=1e-3)
    assert cost_of(time, made) == pytest.approx(done.cycles + per_byte * moved(done), rel=1e-4)
    assert cost_of(in_time(Stopwatch(machine)), made) == done.cycles
    # the cycles that tasks are told to take are without the price
    assert made.estimated_cycles < 1.02 * done.cycles


def test_the_price_is_lowered_where_bytes_would_cost_more_time_than_the_limit(monkeypatch):
    """All of the price would buy bytes for 2 % more time."""
    chip = effective(load_chip("npu-edge-int8"))
    gemms = [{"name": "g", "m": 4096, "n": 4096, "k": 16}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))

    def cycles():
        return Stopwatch(chip)(map_workload(chip, graph, Stopwatch(chip), search=False).program)

    limited = cycles()
    monkeypatch.setattr(mapping, "LIMIT", 10.0)
    unlimited = cycles()
    monkeypatch.setattr(price, "PART", 0.0)
    assert limited <= 1.005 * cycles() < 1.015 * cycles() < unlimited


def test_a_search_that_is_interrupted_while_the_price_is_weighed_has_a_mapping(monkeypatch):
    def interrupted(one, other):
        raise KeyboardInterrupt

    monkeypatch.setattr(mapping, "_alike", interrupted)
    made = mapped("npu-edge-int8", "gpt2", 128)
    assert made.searched.interrupted
    assert INTERRUPTED in made.notes
    assert run(made.program, made.chip).cycles


def test_another_start_gains_where_most_products_have_a_division_of_their_own(monkeypatch):
    """The division that is the best for all is not the best for norms and attention alone."""
    made = mapped("npu-edge", "smollm2-135m", 2048)
    monkeypatch.setattr(divided, "_start", lambda *_: None)
    plain = mapped("npu-edge", "smollm2-135m", 2048)
    ours, theirs = (run(plan.program, plan.chip) for plan in (made, plain))
    assert ours.cycles < 0.999 * theirs.cycles
    assert moved(ours) < 0.98 * moved(theirs)

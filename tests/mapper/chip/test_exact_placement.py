"""Constraint programming against every placement of small problems, and against the heuristic."""

import sys
from itertools import product

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.placement import PLACEMENTS, map_placed
from siliconloom.mapper.chip.exact_placement import PRECISION, solve
from siliconloom.mapper.chip.memory import Item
from siliconloom.mapper.chip.placement import Demand, assign_units, cost_of, grain_of, place
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import load_workload
from tests.mapper.chip.test_placement import FAR, FLASH, NEAR, chip, gpt2

RATES = (8, 3, 2, 1)
"""Bytes per cycle of four levels."""
ROLES = ("parameters", "keys", "result")
HOLDS = (
    ["parameters", "cache", "activations"],
    ["parameters"],
    ["cache", "activations"],
    ["parameters", "activations"],
)


def machine(rooms, holds):
    memory = {
        f"level{n}": {
            "kind": "ddr4", "capacity": f"{room} B", "bandwidth": f"{RATES[n]} GB/s", "latency": "1 ns", "holds": held,
        }
        for n, (room, held) in enumerate(zip(rooms, holds, strict=True))
    }  # fmt: skip
    return chip(**memory)


def demands_of(items, levels):
    found = []
    for number, (role, units, size, uses) in enumerate(items):
        cycles = tuple(units * max(size * uses / rate, uses) for rate in RATES[:levels])
        found.append(Demand(Item(f"o{number}", ROLES[role], units, size), units * size * uses, cycles))
    return found


def splits(units, levels):
    """Every way to share so many units among levels."""
    if levels == 1:
        yield (units,)
        return
    for first in range(units + 1):
        for rest in splits(units - first, levels - 1):
            yield (first, *rest)


def every_cost(chip, demands):
    """What every placement costs that the chip has room for, with no code of the mapper's own but the grain."""
    levels, grain = list(chip.memory.values()), grain_of(chip)
    for ways in product(*(splits(d.item.units, len(levels)) for d in demands)):
        used, cost, held = [0] * len(levels), 0.0, True
        for demand, counts in zip(demands, ways, strict=True):
            for n, count in enumerate(counts):
                used[n] += -(-count * demand.item.unit_bytes // grain[n]) * grain[n]
                cost += demand.cycles[n] * count / demand.item.units
                held &= count == 0 or demand.item.held in levels[n].holds
        if held and all(u <= level.total_capacity for u, level in zip(used, levels, strict=True)):
            yield cost


def check(chip, demands, solved):
    """The placement is one that the chip has room for, and the least of all."""
    for demand in demands:
        homes = solved.placement.homes[demand.item.key]
        assert sum(home.count for home in homes) == demand.item.units
        assert all(demand.item.held in chip.memory[home.level].holds for home in homes)
    for name, used in solved.placement.used.items():
        assert used <= chip.memory[name].total_capacity
    error = sum(d.item.units for d in demands) * sum(max(d.cycles) for d in demands) / PRECISION
    least = min(every_cost(chip, demands))
    assert solved.proven
    assert solved.cost == cost_of(chip, solved.placement)
    assert abs(solved.cost - least) <= error + 1e-9
    assert solved.bound <= least <= solved.bound + 2 * error + 1e-6
    return least


@st.composite
def problems(draw):
    levels = draw(st.integers(2, 4))
    rooms = [64 * draw(st.integers(1, 40)) + draw(st.integers(0, 63)) for _ in range(levels)]
    holds = [draw(st.sampled_from(HOLDS)) for _ in range(levels)]
    holds[draw(st.integers(0, levels - 1))] = HOLDS[0]  # some level must hold each kind
    if draw(st.booleans()):  # most often there is room for everything
        rooms[-1], holds[-1] = 10**6, HOLDS[0]
    item = st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 1500), st.integers(0, 9))
    items = draw(st.lists(item, min_size=1, max_size=3 if levels > 3 else 4))
    return machine(rooms, holds), demands_of(items, levels)


@pytest.mark.slow(seconds=2)
@settings(max_examples=120, deadline=None)
@given(problems())
def test_the_solver_finds_the_best_of_all_placements_and_no_less_than_the_heuristic(problem):
    chip, demands = problem
    if not any(True for _ in every_cost(chip, demands)):
        for method in (place, solve):
            with pytest.raises(LoomError, match=r"the workload needs"):
                method(chip, demands)
        event("no room")
        return
    least = check(chip, demands, solve(chip, demands))
    try:
        greedy = place(chip, demands)
    except LoomError:
        event("only the solver finds room")
        return
    gap = cost_of(chip, greedy) / least - 1 if least else 0.0
    event(f"the heuristic costs up to {-(-gap * 20 // 1) * 5:.0f} % more")
    assert solve(chip, demands, greedy).cost <= cost_of(chip, greedy)


def test_a_solver_that_ignores_a_capacity_is_found():
    demands = demands_of([(0, 2, 640, 5), (0, 1, 640, 9)], 2)
    small, large = (machine((room, 10**6), HOLDS[:1] * 2) for room in (1280, 6400))
    check(small, demands, solve(small, demands))
    with pytest.raises(AssertionError):
        check(small, demands, solve(large, demands))
    with pytest.raises(LoomError, match=r"memory\.level0 takes"):
        assign_units(small, demands, [{0: 2}, {0: 1}])


def test_a_solver_that_ignores_what_a_level_holds_is_found():
    demands = demands_of([(1, 2, 640, 5)], 2)
    strict, lax = (machine((6400, 10**6), (holds, HOLDS[0])) for holds in (HOLDS[1], HOLDS[0]))
    check(strict, demands, solve(strict, demands))
    with pytest.raises(AssertionError):
        check(strict, demands, solve(lax, demands))


def test_the_heuristic_may_be_apart_by_what_one_large_object_saves():
    """By byte and by object the greedy rule begins with objects that leave no room for the best pair."""
    demands = demands_of([(0, 1, 640, 9), (0, 1, 512, 8), (0, 1, 512, 8)], 2)
    small = machine((1024 + 128, 10**6), HOLDS[:1] * 2)  # two of 512 fit, and one of 640 with nothing else
    greedy = cost_of(small, place(small, demands))
    assert 1.05 < greedy / check(small, demands, solve(small, demands)) < 1.5


def test_room_that_only_the_solver_finds():
    """Greedily the small object takes the level that the large one needs."""
    demands = demands_of([(0, 1, 64, 9), (0, 1, 640, 1)], 2)
    tight = machine((640, 64), HOLDS[:1] * 2)
    with pytest.raises(LoomError, match="the workload needs"):
        place(tight, demands)
    check(tight, demands, solve(tight, demands))


def test_answers_do_not_change_and_a_limit_gives_a_bound():
    items = [(0, 12, 997 + 64 * n, 1 + n % 7) for n in range(24)]
    demands, wide = demands_of(items, 3), machine((64 * 900, 64 * 1200, 10**7), HOLDS[:1] * 3)
    greedy = place(wide, demands)
    hasty = [solve(wide, demands, greedy, effort=1e-4) for _ in range(2)]
    best = [solve(wide, demands, greedy, effort=0.5) for _ in range(2)]
    assert hasty[0] == hasty[1]
    assert best[0] == best[1]
    assert not hasty[0].proven
    for found in (hasty[0], best[0]):
        assert found.bound <= best[0].cost <= found.cost <= cost_of(wide, greedy)
    assert best[0].bound >= 0.99 * best[0].cost


@pytest.mark.parametrize("near", [pytest.param("24 MiB", marks=pytest.mark.slow), "64 MiB"])
def test_the_faster_program_is_taken_and_both_are_told(near):
    tiered = chip(hbm={**NEAR, "capacity": near}, ddr={**FAR, "capacity": "80 MiB"}, flash=FLASH)
    graph, clock = gpt2(("layers", "3")), Stopwatch(tiered)
    cycles = {way: clock(map_placed(way, tiered, graph).program) for way in PLACEMENTS}
    assert cycles["best"] == min(cycles["heuristic"], cycles["exact"])
    placed = simulate(tiered, graph, placement="best").result()["memory"]["placed"]
    assert {name: tried["cycles"] for name, tried in placed["tried"].items()} == {
        name: cycles[name] for name in ("heuristic", "exact")
    }
    costs = {name: tried["cost_cycles"] for name, tried in placed["tried"].items()}
    assert placed["bound_cycles"] <= costs["exact"] <= costs["heuristic"]
    assert placed["by"] == min(("heuristic", "exact"), key=lambda name: (cycles[name], name != "heuristic"))
    assert placed["gap"] == pytest.approx(costs[placed["by"]] / placed["bound_cycles"] - 1)
    alone = simulate(tiered, graph, placement="exact").result()["memory"]["placed"]
    assert alone["by"] == "exact"
    assert alone["tried"]["heuristic"]["cycles"] is None


@pytest.mark.slow
def test_a_search_compares_both_and_the_default_asks_the_heuristic(monkeypatch):
    tiered, graph = chip(hbm={**NEAR, "capacity": "12 MiB"}, ddr=FAR), gpt2(("layers", "1"))
    default = simulate(tiered, graph).result()
    assert default["memory"]["placed"]["by"] == "heuristic"
    assert set(default["memory"]["placed"]["tried"]) == {"heuristic"}
    searched = simulate(tiered, graph, search=True).result()
    assert set(searched["memory"]["placed"]["tried"]) == {"heuristic", "exact"}
    assert searched["cycles"] <= default["cycles"]
    monkeypatch.setitem(sys.modules, "ortools", None)
    without = simulate(tiered, graph, search=True).result()
    assert set(without["memory"]["placed"]["tried"]) == {"heuristic"}


@pytest.mark.slow(seconds=2)
def test_the_terminal_says_who_placed(capsys):
    words = "gpt2 --set workload.layers=1 --set workload.phase=decode --placement best --set"
    for command in ("sim", "map"):
        assert main([command, "sn40l", *words.split(), "memory.hbm.capacity=100 MiB"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "above the least that transfers can take: heuristic" in out
        assert "; exact" in out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sim npu-cxl gpt2 --placement bset", "--placement: one of heuristic, exact, best (got 'bset'); did you mean"),
        ("map npu-edge gpt2 --placement exact", "--placement: npu-edge has one memory level: nothing is placed"),
        ("map systolic-ws-8 gpt2-block-gemms --placement exact", "--placement: systolic-ws-8 has no memory"),
        ("map npu-cxl gpt2 --placement best --objective energy", "--objective energy on npu-cxl, which has 2 memory"),
        ("sim h100 gpt2 --placement best", "not supported: --placement for GPUs"),
        ("sim sn40l-node gpt2 --placement best", "not supported: --placement for a system"),
        ("sim npu-cxl gpt2 --placement best --mapping m.yaml", "--placement is of the search of a mapping"),
        ("map npu-cxl gpt2 --placement best --mapping m.yaml", "--placement is of the search of a mapping"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(command, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text("kind: mapping\n")
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("way", ["exact", "best"])
def test_without_the_package_one_line_names_the_extra(way, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    words = f"sim sn40l gpt2 --set workload.layers=1 --set workload.phase=decode --placement {way}"
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert "pip install 'siliconloom[placement]'" in error
    assert error.count("\n") == 1


@pytest.mark.slow(seconds=1.5)
def test_a_mapping_that_is_given_says_so(tmp_path, capsys):
    words = ["npu-cxl", "gpt2", "--set", "workload.layers=1", "--set", "workload.phase=decode"]
    assert main(["map", *words, "-o", str(tmp_path / "m.yaml")]) == 0
    given = simulate("npu-cxl", load_workload("gpt2", [("layers", "1"), ("phase", "decode")]))
    assert given.result()["memory"]["placed"]["by"] == "heuristic"
    assert main(["map", *words, "--mapping", str(tmp_path / "m.yaml")]) == 0
    assert "placement, as the mapping says" in " ".join(capsys.readouterr().out.split())

"""The memory hierarchy: what lies where, what it costs, and what is refused."""

from functools import cache
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import Chip, LoomError, NotSupported, load_chip
from siliconloom.arch.isa import Opcode
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.bounds import mean_bound
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.memory import Item
from siliconloom.mapper.chip.placement import Demand, assign, place
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.sim.chip.engine import Stopwatch, run
from siliconloom.sim.chip.levels import instruction_levels
from siliconloom.workloads import load_workload

TILE = {
    "kind": "npu",
    "array": {"rows": 16, "cols": 16, "dataflow": "weight_stationary", "load_rows": 4},
    "scratchpad": {"capacity": "256 KiB"},
    "accumulator": {"capacity": "64 KiB"},
    "vector": {"lanes": 16},
}
NEAR = {"kind": "hbm2", "capacity": "64 MiB", "bandwidth": "51.2 GB/s", "latency": "100 ns"}
FAR = {"kind": "ddr4", "capacity": "1 GiB", "bandwidth": "12.8 GB/s", "latency": "200 ns"}
FLASH = {"kind": "flash", "capacity": "1 TiB", "bandwidth": "3.2 GB/s", "latency": "20 us", "access_bytes": 4096}


def chip(tiles=1, **memory):
    return Chip.model_validate(
        {"kind": "chip", "name": "tiered", "clock": "1 GHz", "tile": TILE, "tile_count": tiles, "memory": memory}
    )


@cache
def gpt2(*sets):
    return load_workload("gpt2", [("phase", "decode"), ("precision", "int8"), *sets])


@pytest.mark.slow(seconds=1)
def test_what_fits_the_nearest_level_lies_there_and_takes_as_long_as_on_a_chip_without_the_others():
    roomy = {**NEAR, "capacity": "1 GiB"}
    alone, tiered = simulate(chip(hbm=roomy), gpt2()), simulate(chip(hbm=roomy, ddr=FAR), gpt2())
    assert tiered.run.cycles == alone.run.cycles
    assert tiered.result()["traffic"]["ddr"] == {"read": 0, "write": 0, "useful_read": 0, "useful_write": 0}


@pytest.mark.slow(seconds=1)
def test_what_does_not_fit_is_streamed_at_the_farther_levels_rate():
    simulation = simulate(chip(hbm=NEAR, ddr=FAR), gpt2())
    result, levels = simulation.result(), simulation.result()["memory"]["levels"]
    assert levels["hbm"]["used_bytes"] <= levels["hbm"]["capacity_bytes"]
    assert levels["hbm"]["used_bytes"] > 0.95 * levels["hbm"]["capacity_bytes"], "hot bytes fill the nearest level"
    needed = gpt2().weight_bytes + gpt2().kv_bytes
    moved = {name: sum(result["traffic"][name][way] for way in ("read", "write")) for name in levels}
    assert sum(moved.values()) > 0.95 * (needed - 2**20)
    alone = sum(moved[name] * 1e9 / levels[name]["bandwidth"] for name in levels)
    assert alone <= result["cycles"] < 1.1 * alone, "one port: the levels take turns"
    assert result["bound"]["level_cycles"]["ddr"] <= moved["ddr"] * 1e9 / 12.8e9


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    "memory",
    [{"hbm": NEAR, "ddr": FAR}, {"hbm": NEAR, "ddr": {**FAR, "capacity": "40 MiB"}, "flash": FLASH}],
    ids=["two", "three"],
)
@pytest.mark.parametrize("tiles", [1, 3])
def test_jumps_are_exact_on_any_hierarchy(memory, tiles):
    machine, graph = chip(tiles, **memory), gpt2(("context", "64"))
    plan = map_workload(machine, graph)
    fast, exact = run(plan.program, machine), run(plan.program, machine, exact=True)
    assert (fast.cycles, fast.traffic.tolist(), fast.stalls.tolist()) == (
        exact.cycles,
        exact.traffic.tolist(),
        exact.stalls.tolist(),
    )
    assert fast.events_skipped
    levels = instruction_levels(plan.program, machine)
    used = {level for level, i in zip(levels, plan.program.instructions, strict=True) if i.opcode == Opcode.LOAD}
    assert used == set(range(len(memory)))


def test_every_repetition_of_a_layer_is_lowered_once_and_objects_do_not_overlap():
    plan = map_workload(chip(hbm=NEAR, ddr={**FAR, "capacity": "40 MiB"}, flash=FLASH), gpt2())
    taken = []
    for demand in plan.placement.demands:
        homes = plan.placement.homes[demand.item.key]
        assert [h.first for h in homes] == [sum(h.count for h in homes[:n]) for n in range(len(homes))]
        assert sum(h.count for h in homes) == demand.item.units
        taken += [(h.address, h.address + h.count * demand.item.unit_bytes) for h in homes]
    taken.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(taken))
    assert all(sum(count for count, _ in task.runs) == task.repeat for task in plan.tasks)


RATES = (8, 2, 1)
"""Bytes per cycle of three levels."""


def small(sizes):
    names = "abc"[: len(sizes)]
    memory = {
        name: {"kind": "ddr4", "capacity": f"{size} B", "bandwidth": f"{rate} GB/s", "latency": "1 ns"}
        for name, size, rate in zip(names, sizes, RATES, strict=False)
    }
    return chip(**memory)


@settings(max_examples=80, deadline=None)
@given(
    items=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=3),
    rooms=st.lists(st.integers(1, 60), min_size=1, max_size=2),
)
def test_placement_is_near_the_best_of_all(items, rooms):
    """Greedy against every assignment: apart by no more than what one unit saves at each boundary of levels."""
    kib = 1024
    machine = small([room * kib for room in rooms] + [10**6])
    levels = len(rooms) + 1
    demands, units = [], []
    for number, (count, size, uses) in enumerate(items):
        size *= kib
        demands.append(
            Demand(
                Item(f"o{number}", "parameters", count, size),
                count * size * uses,
                tuple(count * size * uses / rate for rate in RATES[:levels]),
            )
        )
        units += [(size, uses)] * count
    grain = 64
    best = None
    for where in product(range(levels), repeat=len(units)):
        used = [
            sum(size for (size, _), place in zip(units, where, strict=True) if place == level)
            for level in range(levels)
        ]
        if all(u <= room * kib for u, room in zip(used, rooms, strict=False)):
            cost = sum(size * uses / RATES[place] for (size, uses), place in zip(units, where, strict=True))
            best = cost if best is None else min(best, cost)
    made = place(machine, demands)
    cost = 0.0
    for demand in demands:
        for home in made.homes[demand.item.key]:
            cost += demand.cycles[list(machine.memory).index(home.level)] * home.count / demand.item.units
    slack = max((size + 3 * len(items) * grain) * uses for size, uses in units)
    assert cost >= best - 1e-6
    assert cost <= best + (levels - 1) * slack * (1 / RATES[levels - 1] - 1 / RATES[0]) + 1e-6


def test_equal_units_are_placed_as_well_as_can_be():
    machine = small([10 * 1024, 20 * 1024, 10**6])
    demands = [
        Demand(Item(f"o{n}", "parameters", 4, 2000), 8000 * uses, tuple(8000 * uses / rate for rate in RATES))
        for n, uses in enumerate((1, 5, 3))
    ]
    made = place(machine, demands)
    assert made.shares(("o1", "parameters")) == {"a": 4}
    assert made.shares(("o2", "parameters")) == {"a": 1, "b": 3}
    assert made.shares(("o0", "parameters")) == {"b": 4}


def test_the_rule_follows_bandwidth_and_not_the_order_of_the_names():
    simulation = simulate(chip(slow=FAR, fast={**NEAR, "capacity": "1 GiB"}), gpt2())
    assert simulation.result()["memory"]["levels"]["slow"]["moved_bytes"] == 0


def test_a_model_that_fits_no_tier_is_refused_with_every_capacity():
    with pytest.raises(LoomError) as error:
        map_workload(chip(hbm=NEAR, ddr={**FAR, "capacity": "32 MiB"}), gpt2())
    text = str(error.value)
    assert "needs 174.9 MiB" in text
    assert "memory.hbm, which has 64 MiB (memory.hbm.capacity)" in text
    assert "memory.ddr, which has 32 MiB (memory.ddr.capacity)" in text
    assert "\n" not in text


def test_a_transfer_that_would_run_from_one_level_into_the_next_is_refused():
    plan = map_workload(chip(hbm={**NEAR, "capacity": "1 GiB"}), gpt2())
    with pytest.raises(LoomError, match=r"must stay in one memory level"):
        run(plan.program, chip(hbm={**NEAR, "capacity": "1 MiB"}, ddr=FAR))


@pytest.mark.slow(seconds=1)
def test_striping_helps_long_rows_and_not_short_ones():
    one = {"kind": "cxl", "capacity": "1 GiB", "bandwidth": "6.4 GB/s", "latency": "250 ns"}
    cycles = {}
    for devices in (1, 2, 4, 8):
        striped = {**one, "devices": devices, **({"interleave": "4 KiB"} if devices > 1 else {})}
        cycles[devices] = simulate(chip(cxl=striped), gpt2()).run.cycles
    assert 1.7 < cycles[1] / cycles[2] <= 2.05
    assert cycles[2] > cycles[4] > cycles[8], "more devices never hurt"
    assert cycles[4] / cycles[8] < cycles[1] / cycles[2], "rows shorter than a stripe leave devices idle"
    ideal = simulate(chip(cxl={**one, "bandwidth": "51.2 GB/s"}), gpt2()).run.cycles
    assert cycles[8] > ideal


def test_a_tile_behind_several_levels_has_no_rtl_of_its_dma_yet():
    one = {**NEAR, "access_bytes": 64}
    for memory in ({"hbm": one, "ddr": FAR}, {"hbm": {**one, "ports": 2}}):
        with pytest.raises(NotSupported, match="several memory levels, ports or devices"):
            geometry_of(chip(**memory))


def test_a_level_takes_only_what_it_holds():
    roomy = {**NEAR, "capacity": "1 GiB"}
    plan = map_workload(chip(hbm={**roomy, "holds": ["parameters", "activations"]}, ddr=FAR), gpt2())
    levels = {d.item.held: set() for d in plan.placement.demands}
    for demand in plan.placement.demands:
        levels[demand.item.held] |= {home.level for home in plan.placement.homes[demand.item.key]}
    assert levels == {"parameters": {"hbm"}, "cache": {"ddr"}, "activations": {"hbm"}}


def test_every_operator_is_estimated_at_no_less_than_what_its_levels_allow():
    plan = map_workload(chip(hbm=NEAR, ddr={**FAR, "capacity": "40 MiB"}, flash=FLASH), gpt2())
    for task in plan.tasks:
        bound = mean_bound(plan.chip, task.task.operator, plan.placement)
        if task.task.operator.kind in ("gemm", "attention"):
            assert task.estimated_cycles >= 0.99 * bound.lower_bound_cycles
        assert sum(count for count, _ in task.runs) == task.repeat


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shapes", "share"),
    [
        (((8, 1024, 1024), (8, 256, 1024)), 0.5),
        (((1, 256, 1024), (8, 1024, 256)), 0.78),
        (((1, 1024, 1024), (8, 1024, 1024)), 0.36),
    ],
)
def test_no_other_assignment_of_whole_objects_is_simulated_faster(tmp_path, shapes, share):
    path = tmp_path / "list.yaml"
    rows = "".join(f"  - {{name: g{i}, m: {m}, n: {n}, k: {k}}}\n" for i, (m, n, k) in enumerate(shapes))
    path.write_text(f"kind: gemms\nprecision: int8\ngemms:\n{rows}")
    graph = load_workload(str(path))
    roomy = map_workload(chip(hbm={**NEAR, "capacity": "1 GiB"}, ddr=FAR), graph)
    capacity = int(share * sum(d.item.size for d in roomy.placement.demands))
    machine = chip(hbm={**NEAR, "capacity": f"{capacity} B"}, ddr=FAR)
    clock = Stopwatch(machine)
    ours = clock(map_workload(machine, graph, clock, search=False).program)
    demands, best = roomy.placement.demands, None
    for where in product(("hbm", "ddr"), repeat=len(demands)):
        try:
            fixed = assign(machine, demands, {d.item.key: w for d, w in zip(demands, where, strict=True)})
        except LoomError:
            continue
        cycles = clock(map_workload(machine, graph, clock, fixed, search=False).program)
        best = cycles if best is None else min(best, cycles)
    assert ours <= 1.011 * best  # objects are placed by estimates


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("tiles", "tokens"), [(2, 64), (4, 64), (4, 128)])
def test_what_a_cache_is_filled_from_is_as_large_whatever_part_of_its_heads_a_tile_has(tiles, tokens):
    """Keys and values of heads that have no layout were as large as a tile's share of them, so they had no place."""
    graph = load_workload("deepseek-v3", [("layers", "1"), ("sequence", str(tokens))])
    machine = load_chip("sn40l", [("tile_count", str(tiles))])
    memory = simulate(machine, graph).plan.memory
    sizes = {kind: memory.items[f"layer.attention.{kind}", "input"].size for kind in ("keys", "values")}
    assert sizes == {kind: 2 * tokens * 128 * width for kind, width in (("keys", 192), ("values", 128))}

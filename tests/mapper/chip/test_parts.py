"""Tiles that use a part of an array compute what tiles of all of it do, from the same operands."""

import json

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siliconloom.arch.assembler import check_program
from siliconloom.arch.document import Document
from siliconloom.arch.errors import DescriptionError
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.gemm_layout import GemmLayout
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.program import lower
from siliconloom.mapper.chip.tasks import gemm_shape
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.engine import run
from siliconloom.sim.chip.tables import Counter
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.filling import filled
from siliconloom.verification.races import races
from tests.mapper.chip.improvements import workload
from tests.mapper.chip.semaphores import left
from tests.mapper.chip.test_gather import small


def of_tiles(mapped, graph, values="", **sizes):
    """The same workload with tiles of other sizes, of which every other one may lie in a ring of ``values``."""
    text = yaml.safe_load(mapping_text(mapped))
    text["tasks"][0]["gemm"] |= {"resident": False, **sizes}
    text["layout"] |= dict.fromkeys(("weights", "moving", "results", "constants"), "1 KiB")
    text["layout"].pop("values", None)
    text["layout"] |= {"values": values} if values else {}
    return lower(mapped.chip, graph, mapping_of(Document.parse(yaml.safe_dump(text)), mapped.chip, graph))


def results(mapped, memory):
    """What a program leaves of its only product."""
    check_program(mapped.program, mapped.chip)
    after = memory.copy()
    GoldenMachine(mapped.chip, after).run(mapped.program)
    (stored,) = mapped.results.values()
    return after[stored.address : stored.address + stored.size]


@pytest.mark.slow(seconds=1)
@settings(max_examples=30, deadline=None)
@given(
    dataflow=st.sampled_from(["weight_stationary", "input_stationary", "output_stationary"]),
    m=st.integers(1, 32),
    n=st.integers(1, 20),
    k=st.integers(1, 30),
    rows=st.sampled_from([1, 2, 4, 8, 16]),
    depth=st.sampled_from([2, 4, 8, 16, 30]),
    order=st.sampled_from(["m_outer", "n_outer"]),
    seed=st.integers(0, 99),
)
def test_tiles_of_a_part_of_the_rows_make_the_same_product(dataflow, m, n, k, rows, depth, order, seed):
    """Blocks of rows on an array that keeps its sums lie where they do, whatever tiles take of them."""
    load_rows = 1 if dataflow == "output_stationary" else 2
    chip = small(8, **{"tile.array.dataflow": dataflow, "tile.array.load_rows": load_rows})
    gemms = [{"name": "g", "m": m, "n": n, "k": k}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    mapped = map_workload(chip, graph)
    # tiles of columns as deep as the product lie in memory alike, whatever rows they meet
    whole = of_tiles(mapped, graph, m=m, n=n, k=k, order=order)
    tall = of_tiles(mapped, graph, m=min(rows, m), n=n, k=k, order=order)
    memory = filled(whole, seed).loaded()
    np.testing.assert_array_equal(results(tall, memory), results(whole, memory))
    if dataflow == "output_stationary":  # panels are as deep as tiles are, row by row: one is as good as several
        deep = of_tiles(mapped, graph, m=min(rows, m), n=min(n, 8), k=min(depth, k), order=order)
        there = of_tiles(mapped, graph, m=m, n=min(n, 8), k=k, order=order)
        memory = filled(there, seed).loaded()
        np.testing.assert_array_equal(results(deep, memory), results(there, memory))


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=30, deadline=None)
@given(
    dataflow=st.sampled_from(["weight_stationary", "input_stationary"]),
    m=st.integers(2, 40),
    n=st.integers(1, 30),
    k=st.integers(1, 30),
    rows=st.integers(1, 16),
    columns=st.sampled_from([8, 16, 24]),
    batch=st.integers(1, 3),
    bus=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 99),
)
def test_rows_in_pairs_of_tiles_make_the_same_product(dataflow, m, n, k, rows, columns, batch, bus, seed):
    """Both tiles of a pair stay in their slots while columns pass; of the last pair there may be one, or a shorter one.

    The columns, which are read for each pair, are read half as often.
    """
    chip = small(bus, **{"tile.array.dataflow": dataflow})
    gemms = [{"name": "g", "m": m, "n": n, "k": k, "batch": batch}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    mapped = map_workload(chip, graph)
    wide, tall = min(n, columns), min(rows, m - 1)
    single = of_tiles(mapped, graph, m=tall, n=wide, k=k, order="m_outer", resident=True)
    pairs = of_tiles(mapped, graph, m=tall, n=wide, k=k, order="m_pairs", resident=True)
    memory = filled(single, seed).loaded()
    np.testing.assert_array_equal(results(pairs, memory), results(single, memory))
    moved = [each.tasks[0].tiling.read_bytes for each in (pairs, single)]
    taken = [run(each.program, chip) for each in (pairs, single)]
    simulated = [int(each.counters[:, Counter.READ_BYTES].sum()) for each in taken]
    assert simulated[0] <= simulated[1]
    assert moved[0] <= moved[1]


@pytest.mark.slow(seconds=2.5)
@settings(max_examples=30, deadline=None)
@given(
    dataflow=st.sampled_from(["weight_stationary", "input_stationary"]),
    m=st.integers(1, 60),
    n=st.integers(1, 30),
    k=st.integers(1, 50),
    rows=st.integers(1, 40),
    columns=st.sampled_from([4, 8, 16, 24]),
    depth=st.sampled_from([2, 4, 8, 16, 24, 32]),
    batch=st.integers(1, 3),
    bus=st.sampled_from([4, 8, 16]),
    held=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_rows_that_stay_in_both_slots_make_the_same_product(
    dataflow, m, n, k, rows, columns, depth, batch, bus, held, seed
):
    """Columns of the whole depth stay, too, while the rows pass in several result tiles; others come in tiles of it.

    Of rows a part of the depth may stay, and the rest come again for every tile of columns.
    """
    chip = small(bus, **{"tile.array.dataflow": dataflow})
    gemms = [{"name": "g", "m": m, "n": n, "k": k, "batch": batch}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    mapped = map_workload(chip, graph)
    wide, tall, deep = min(n, columns), min(rows, m), min(depth, k)
    other = of_tiles(mapped, graph, m=min(tall, 20), n=wide, k=deep, order="m_outer")
    part = min(held, (k - 1) // deep) * deep
    product = mapped.tasks[0].task
    laid = GemmLayout(chip.tile, gemm_shape(product.operator, product))
    part = part if laid.kept_needs(tall, wide, deep, part)["moving"] <= 1024 else 0
    parted = {"held": part} if part else {}
    stay = of_tiles(mapped, graph, m=tall, n=wide, k=deep, order="m_kept", resident=deep == k, **parted)
    assert stay.tasks[0].tiling.held == part
    assert not left(other.program)
    assert not left(stay.program)
    assert not list(races(stay.program, chip))
    memory = filled(other, seed).loaded()
    np.testing.assert_array_equal(results(stay, memory), results(other, memory))


@pytest.mark.parametrize("dataflow", ["weight_stationary", "input_stationary"])
@pytest.mark.parametrize(("rows", "depth"), [(20, 32), (64, 32), (20, 16), (64, 16), (28, 32)])
def test_rows_that_stay_are_read_once_and_columns_once_for_each_so_many_rows(dataflow, rows, depth):
    """The estimate says what a run moves, and what takes more than a slot stays: rows of 32 bytes in slots of 1 KiB."""
    chip, (m, n, k), wide = small(8, **{"tile.array.dataflow": dataflow}), (64, 40, 32), 8
    gemms = [{"name": "g", "m": m, "n": n, "k": k}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    made = of_tiles(map_workload(chip, graph), graph, m=rows, n=wide, k=depth, order="m_kept", resident=depth == k)
    rounds, (tiling,) = -(-m // rows), (each.tiling for each in made.tasks)
    parameters = n * GemmLayout(chip.tile, gemm_shape(made.tasks[0].task.operator, made.tasks[0].task)).columns(1)
    counters = run(made.program, chip).counters
    assert tiling.read_bytes == m * k + rounds * (n * k + parameters)
    assert int(counters[:, Counter.READ_BYTES].sum()) == tiling.read_bytes
    assert int(counters[:, Counter.WRITE_BYTES].sum()) == tiling.write_bytes == m * n


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 12),
    parts=st.integers(2, 5),
    held=st.integers(1, 4),
    depth=st.sampled_from([4, 8]),
    stays=st.booleans(),
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(1, 50)),
    memory=st.sampled_from([("100 GB/s", "1 ns"), ("5 GB/s", "100 ns")]),
)
@example(rows=10, parts=3, held=2, depth=8, stays=True, sizes=(16, 4, 50), memory=("100 GB/s", "1 ns"))
def test_nothing_that_comes_behind_rows_that_stay_in_part_is_loaded_over_them(
    rows, parts, held, depth, stays, sizes, memory
):
    """The next product waits for one free slot, and what stayed lies in both; in lists for nothing else."""
    chip = small(8, **{"memory.dram.bandwidth": memory[0], "memory.dram.latency": memory[1]})
    m, n, k = sizes
    gemms = [{"name": "g", "m": 24, "n": 16, "k": depth * parts - 3}, {"name": "h", "m": m, "n": n, "k": k}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    text = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    part = min(held, parts - 1) * depth
    text["tasks"][0]["gemm"] = {"m": rows, "n": 8, "k": depth, "order": "m_kept", "held": part}
    tile = {"m": min(m, 8), "n": min(n, 8), "k": k if stays else min(k, 8), "order": "m_outer", "resident": stays}
    text["tasks"][1] |= {"gemm": tile | {"resident": tile["k"] == k}}
    for task in text["tasks"]:
        task.pop("layout", None)
    text["layout"] |= dict.fromkeys(("weights", "moving", "results", "constants"), "1 KiB")
    text["layout"].pop("values", None)
    made = lower(chip, graph, mapping_of(Document.parse(yaml.safe_dump(text)), chip, graph))
    assert not left(made.program)
    assert not list(races(made.program, chip))


@pytest.mark.parametrize("dataflow", ["weight_stationary", "input_stationary"])
@pytest.mark.parametrize(("rows", "depth", "held"), [(20, 8, 24), (40, 8, 16), (40, 16, 16), (28, 8, 8)])
def test_of_rows_that_stay_in_part_the_rest_is_read_for_every_tile_of_columns(dataflow, rows, depth, held):
    """The estimate says what a run moves; rows of 64 bytes in slots of 1 KiB, of which so many bytes stay."""
    chip, (m, n, k), wide = small(8, **{"tile.array.dataflow": dataflow}), (100, 40, 64), 8
    gemms = [{"name": "g", "m": m, "n": n, "k": k}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    made = of_tiles(map_workload(chip, graph), graph, m=rows, n=wide, k=depth, order="m_kept", held=held)
    again = mapping_of(Document.parse(mapping_text(made)), chip, graph)
    assert lower(chip, graph, again).program == made.program
    rounds, (tiling,) = -(-m // rows), (each.tiling for each in made.tasks)
    parameters = n * GemmLayout(chip.tile, gemm_shape(made.tasks[0].task.operator, made.tasks[0].task)).columns(1)
    outcome = run(made.program, chip)
    assert tiling.read_bytes == m * held + n // wide * m * (k - held) + rounds * (n * k + parameters)
    assert int(outcome.counters[:, Counter.READ_BYTES].sum()) == tiling.read_bytes
    assert int(outcome.counters[:, Counter.WRITE_BYTES].sum()) == tiling.write_bytes == m * n
    assert 0.9 * outcome.cycles <= tiling.cycles <= 1.1 * outcome.cycles


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=30, deadline=None)
@given(
    dataflow=st.sampled_from(["weight_stationary", "input_stationary"]),
    m=st.integers(1, 20),
    n=st.integers(1, 30),
    k=st.integers(9, 70),
    rows=st.integers(1, 20),
    columns=st.sampled_from([8, 16, 24]),
    depth=st.sampled_from([8, 16, 24]),
    order=st.sampled_from(["m_outer", "n_outer"]),
    batch=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_tiles_that_take_turns_in_two_rings_make_the_same_product(
    dataflow, m, n, k, rows, columns, depth, order, batch, seed
):
    """Of an odd number of tiles along the depth the last one is followed by another in the same ring."""
    chip = small(8, **{"tile.array.dataflow": dataflow})
    gemms = [{"name": "g", "m": m, "n": n, "k": k, "batch": batch}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    mapped = map_workload(chip, graph)
    given = {"m": min(rows, m), "n": min(n, columns), "k": min(depth, k - 1), "order": order}
    given["k"] = max(given["k"] // 8 * 8, 8)
    one = of_tiles(mapped, graph, **given)
    two = of_tiles(mapped, graph, values="1 KiB", **given)
    assert {"values_full", "values_free"} <= {semaphore.name for semaphore in two.program.semaphores}
    memory = filled(one, seed).loaded()
    np.testing.assert_array_equal(results(two, memory), results(one, memory))
    taken = [run(each.program, chip).cycles for each in (two, one)]
    assert taken[0] <= 1.5 * taken[1]  # of few tiles one more is waited for at the ends


def test_an_estimate_counts_stores_that_do_not_fit_their_queue():
    """Rows of 30 bytes in 15 pieces: instructions are issued in order, so the next tile waited: twice the estimate."""
    sets = {"rows": 9, "cols": 15, "dataflow": "output_stationary", "load_rows": 1}
    chip = small(
        32,
        "1 MiB",
        **{f"tile.array.{key}": value for key, value in sets.items()},
        **{"tile.accumulator.capacity": "30 KiB", "tile.vector.lanes": 2, "memory.dram.bandwidth": "64 GB/s"},
    )
    gemms = [{"name": "g", "m": 300, "n": 112, "k": 80}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    text = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    text["tasks"][0]["gemm"] = {"m": 63, "n": 30, "k": 80, "order": "m_outer", "resident": True}
    made = lower(chip, graph, mapping_of(Document.parse(yaml.safe_dump(text)), chip, graph))
    stores = sum(each.opcode.name == "STORE" for each in made.program.instructions)
    assert stores > 2 * chip.tile.sequencer.queue_depth
    taken = run(made.program, chip).cycles
    assert 0.85 * taken <= made.estimated_cycles <= 1.15 * taken


@pytest.mark.parametrize(("k", "values"), [(10, "1 KiB"), (8, "64 B")])
def test_a_ring_that_nothing_uses_is_refused(k, values):
    """A product whose tiles have its whole depth, or do not fit."""
    chip = small(8)
    gemms = [{"name": "g", "m": 9, "n": 21, "k": 10}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    mapped = map_workload(chip, graph)
    with pytest.raises(DescriptionError, match=r"leave out layout\.values"):
        of_tiles(mapped, graph, values, m=9, n=21, k=k, order="m_outer")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"resident": False}, "tiles of rows in pairs stay: needs 'resident: true'"),
        ({"m": 9}, "pairs of tiles of rows need several of them: m below 9"),
        ({"sequence": [1, 0]}, "pairs of tiles of rows are taken one after the other"),
    ],
)
def test_pairs_that_are_none_are_refused(sizes, message):
    chip = small(8)
    gemms = [{"name": "g", "m": 9, "n": 21, "k": 10}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    given = {"m": 5, "n": 21, "k": 10, "order": "m_pairs", "resident": True} | sizes
    with pytest.raises(DescriptionError, match=message):
        of_tiles(map_workload(chip, graph), graph, **given)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"k": 8, "resident": True}, "beside rows that stay columns do where tiles have the whole depth, k 30"),
        ({"k": 30, "resident": False}, "beside rows that stay columns do where tiles have the whole depth, k 30"),
        ({"k": 6}, "beside rows that stay tiles have the whole depth 30, whole folds of 8 or an equal part of one"),
        ({"sequence": [1, 0]}, "rows that stay are taken one after the other"),
        ({"m": 90}, "moving"),
        ({"held": 12}, r"what stays of the depth is some whole tiles of it, multiples of 8 below 30 \(got 12\)"),
        ({"held": 32}, "what stays of the depth is some whole tiles of it, multiples of 8 below 30"),
        ({"order": "m_outer", "held": 8}, "a part of the depth stays of rows that do: needs 'order: m_kept'"),
    ],
)
def test_rows_that_do_not_stay_in_both_slots_are_refused(sizes, message):
    chip = small(8)
    gemms = [{"name": "g", "m": 90, "n": 21, "k": 30}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    given = {"m": 45, "n": 16, "k": 8, "order": "m_kept", "resident": False} | sizes
    with pytest.raises(DescriptionError, match=message):
        of_tiles(map_workload(chip, graph), graph, **given)


@pytest.mark.parametrize("columns", [2, 4, 8])
def test_tiles_of_a_part_of_a_panel_are_lowered_and_checked(columns):
    chip = small(8)
    gemms = [{"name": "g", "m": 9, "n": 21, "k": 10}]
    graph = workload(json.dumps({"kind": "gemms", "name": "list", "precision": "int8", "gemms": gemms}))
    made = of_tiles(map_workload(chip, graph), graph, m=9, n=columns, k=10)
    check_program(made.program, chip)
    assert max(i.n for i in made.program.instructions if i.opcode.name == "MATMUL") == columns

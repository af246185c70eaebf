"""Mappings as files: what is written is read as the same program, and what is read is checked."""

import json
import random
from contextlib import suppress

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.errors import DescriptionError
from siliconloom.arch.isa import Opcode
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.mapper.chip.program import lower
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.engine import Counter, duration, run
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import load_workload
from tests.in_turn import in_turn
from tests.mapper.chip.improvements import made_chip, random_chip, random_workload, workload

GPT2 = (("layers", "2"), ("sequence", "32"))


def again(mapped, graph):
    """The same workload lowered from its mapping's text."""
    return lower(mapped.chip, graph, mapping_of(Document.parse(mapping_text(mapped)), mapped.chip, graph))


def check_same(chip, graph):
    mapped = map_workload(chip, graph)
    graph, _ = fit_precision(chip, graph)
    read = again(mapped, graph)
    assert read.program.instructions == mapped.program.instructions
    assert [t.runs for t in read.tasks] == [t.runs for t in mapped.tasks]  # estimates included
    if mapped.placement is not None:  # an object was placed with the size that it had under another choice
        assert read.placement.homes == mapped.placement.homes
        assert {d.item for d in read.placement.demands} == {d.item for d in mapped.placement.demands}
    return mapped


@pytest.mark.slow(seconds=3.5)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_a_mapping_that_is_written_and_read_is_the_same_program(seed):
    r = random.Random(seed)
    graph = workload(random_workload(r))
    with suppress(LoomError):  # buffers that are too small for any mapping
        check_same(effective(made_chip(random_chip(r))), graph)


@pytest.mark.parametrize(
    ("chip", "sets", "phase"),
    [
        ("npu-datacenter", (), "decode"),
        ("csd-flash", (("memory.dram.capacity", "100 MiB"),), "prefill"),
        ("sn40l", (), "decode"),
        pytest.param("sn40l", (), "prefill", marks=pytest.mark.slow(seconds=2)),
        ("tpu-v4", (), "prefill"),
    ],
)
def test_library_chips_are_read_as_they_are_written(chip, sets, phase):
    """Those with several memory levels, too, and blocks whose objects lie in more than one."""
    length = "context" if phase == "decode" else "sequence"
    graph = load_workload("gpt2", [("layers", "4"), ("phase", phase), (length, "64")])
    mapped = check_same(effective(load_chip(chip, sets)), graph)
    assert (mapped.placement is None) == (len(mapped.chip.memory) == 1)


@pytest.mark.slow(seconds=1)
def test_tiles_that_join_are_read_as_they_are_written():
    gemms = [{"name": "first", "m": 64, "n": 4096, "k": 1024}]
    done = simulate("neupims-device", workload(json.dumps(GEMMS | {"precision": "fp16", "gemms": gemms})))
    assert done.joined
    text = Document.parse(mapping_text(done.plan, joined=True))
    assert simulate(done.described, done.graph, mapping=text).run.cycles == done.run.cycles
    with pytest.raises(DescriptionError, match=r"joined: the tiles of npu-edge-int8 do not join"):
        simulate("npu-edge-int8", workload(json.dumps(GEMMS)), mapping=text)


def changed(data, r):
    """A mapping with other tiles, order or cut for a few operators; anything may come out."""
    for entry in r.sample(data["tasks"], min(3, len(data["tasks"]))):
        kind = next(k for k in ("gemm", "attention", "vector") if k in entry)
        for key, value in entry[kind].items():
            if key == "order":
                entry[kind][key] = r.choice(["n_outer", "m_outer", "m_pairs"])
            elif key == "resident":
                entry[kind][key] = r.random() < 0.5
            elif r.random() < 0.7:
                entry[kind][key] = max(1, r.choice([value // 2, value // 3, value - 1, value + 1, 2 * value]))
        if r.random() < 0.4:
            entry.pop("cut", None)
    return data


@pytest.mark.slow(seconds=4.5)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_any_mapping_that_is_taken_does_every_product_once_and_no_faster_than_the_bound(seed):
    """Tiles that divide nothing evenly among them: no iteration is left out and none done twice."""
    r = random.Random(seed)
    chip = effective(load_chip("npu-edge-int8", [("tile_count", r.choice(["1", "4"]))]))
    graph = workload(random_workload(r))
    text = yaml.safe_dump(changed(yaml.safe_load(mapping_text(map_workload(chip, graph))), r))
    try:
        mapped = lower(chip, graph, mapping_of(Document.parse(text), chip, graph))
    except DescriptionError:
        return
    outcome = run(mapped.program, chip)
    assert outcome.cycles >= mapped.bound.lower_bound_cycles
    needed = sum(o.macs * o.repeat for o in graph.operators())
    assert int(outcome.counters[:, Counter.MACS].sum()) >= needed


TEXT = """\
kind: mapping
layout: {weights: 40000 B, moving: 24000 B, vector: 12032 B, results: 16000 B, constants: 2048 B, partial: 32768 B}
tasks:
  - {operator: first, fused: [], cut: {m: 2}, gemm: {m: 32, n: 96, k: 80, order: n_outer, resident: true}}
  - {operator: second, gemm: {m: 32, n: 64, k: 64, order: m_outer}}
"""
SECOND = "gemm: {m: 32, n: 64, k: 64, order: m_outer}"
GEMMS = {
    "kind": "gemms",
    "name": "some",
    "precision": "int8",
    "gemms": [{"name": "first", "m": 64, "n": 96, "k": 80}, {"name": "second", "m": 32, "n": 64, "k": 128, "batch": 2}],
}


def read(text, chip=(("tile_count", "2"),)):
    machine = effective(load_chip("npu-edge-int8", chip))
    return lower(
        machine, graph := workload(json.dumps(GEMMS)), mapping_of(Document.parse(text, "m.yaml"), machine, graph)
    )


def test_a_mapping_by_hand_is_taken():
    mapped = read(TEXT)
    first, second = mapped.tasks
    assert (first.tiles, first.cut, first.tiling.m, first.tiling.resident) == (2, (1, 2, 1), 32, True)
    assert (second.tiles, second.tiling.k) == (1, 64)
    assert run(mapped.program, mapped.chip).cycles >= mapped.bound.lower_bound_cycles


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("weights: 40000 B", "weights: 90000 B", r"m.yaml:2:1: layout: .*288,160 B .*262,144 B: 26,016 B too much"),
        ("partial: 32768 B", "partial: 66000 B", r"layout: the slots of partial, context take 66,000 B"),
        ("weights: 40000 B", "weights: 4032 B", r"m.yaml:4:.* tasks.0.gemm: first: a tile takes 7,680 B of"),
        ("constants: 2048 B", "constants: 64 B", r"a tile takes 768 B of layout.constants, 704 B more than its 64 B"),
        ("operator: first", "operator: frist", r"m.yaml:4:.*tasks.0.operator: is not in some .*'first'"),
        ("operator: second", "operator: first", r"m.yaml:5:.* tasks.1.operator: is there already"),
        ("fused: []", "fused: [second]", r"m.yaml:4:.*tasks.0.fused: nothing can be computed on the results of first"),
        ("cut: {m: 2}", "cut: {m: 3}", r"m.yaml:4:.*tasks.0.cut: 3 parts for the 2 tiles of npu-edge-int8"),
        ("cut: {m: 2}", "cut: {rows: 2}", r"tasks.0.cut.rows: first is of kind gemm, which is cut along batch, m, n"),
        ("cut: {m: 2}", "cut: {m: 0}", r"tasks.0.cut.m: .*greater than or equal to 1"),
        ("gemm: {m: 32, n: 96", "gemm: {m: 33, n: 96", r"gemm.m: must be at most 32, .* of first has \(got 33\)"),
        ("k: 80, order", "k: 40, order", r"tasks.0.gemm.resident: an operand stays only where .* k 80"),
        ("k: 64, order", "k: 64, sequence: [1, 0], order", r"tasks.1.gemm.sequence: the tiles of rows of second"),
        ("order: n_outer", "order: k_outer", r"tasks.0.gemm.order: must be one of n_outer, m_outer, m_pairs"),
        (SECOND, "vector: {rows: 1, cols: 1}", r"tasks.1.vector: second is of kind gemm"),
        (", " + SECOND, "", r"tasks.1.operator: one of gemm, attention and vector says"),
        ("second,", "second, repetition: 1,", r"tasks.1.repetition: second has no entry for its first"),
        ("tasks:", "placement: []\ntasks:", r"placement: npu-edge-int8 has one memory level"),
        ("kind: mapping", "kind: mapping\njoined: maybe", r"joined: "),
        ("vector: 12032 B", "vector: 12000 B", r"layout\.vector: slots are whole lines of a bank, of 64 B.*'12000 B'"),
        ("vector: 12032 B", "vectors: 12032 B", r"unknown key 'vectors'.*'vector'"),
        ("weights: 40000 B", "weights: 74000 B", r"layout: a bank has rings of one kind .*18 banks.* has 16"),
        ("kind: mapping", "kind: mapping\nbanked: false", r"banked: the rings take \d+ of the 16 banks"),
    ],
)  # fmt: skip
def test_what_a_mapping_must_not_be_is_said_where_it_stands(old, new, told):
    assert old in TEXT
    with pytest.raises(DescriptionError, match=told):
        read(TEXT.replace(old, new, 1))


@pytest.mark.parametrize("m", in_turn([3, 5, 7, 9], 0, seconds=2))
def test_rows_that_stay_are_no_more_than_there_are(m):
    """They were tried in eights: a mapping of a product of three rows had eight, and was refused when it was read."""
    chip = effective(load_chip("npu-edge-int8", [("tile.array.rows", "6"), ("tile.array.load_rows", "1")]))
    gemms = [{"name": "one", "m": m, "n": 256, "k": 192}]
    graph = workload(json.dumps({"kind": "gemms", "name": "one", "precision": "int8", "gemms": gemms}))
    made = map_workload(chip, graph, lambda program: duration(program, chip))
    assert all(task.tiling.m <= m for task in made.tasks)
    assert again(made, graph).program.instructions == made.program.instructions


def blocked(block, rows=8, **others):
    """A product's mapping to an array of so many rows that keeps its sums, its rows in blocks of so many."""
    array = {"rows": str(rows), "cols": "4", "load_rows": "1", "dataflow": "output_stationary"} | others
    chip = effective(load_chip("npu-edge-int8", [(f"tile.array.{key}", value) for key, value in array.items()]))
    gemms = {"kind": "gemms", "name": "one", "precision": "int8", "gemms": [{"name": "one", "m": 19, "n": 8, "k": 16}]}
    graph = workload(json.dumps(gemms))
    data = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    data["tasks"][0].pop("cut", None)
    data["tasks"][0]["gemm"] |= {"m": block or 4, "n": 8, "block": block}
    return chip, graph, data


@pytest.mark.parametrize("block", [1, 2, 4])
def test_blocks_of_fewer_rows_than_the_array_has_are_read_as_they_are_written(block):
    chip, graph, data = blocked(block)
    made = lower(chip, graph, mapping_of(Document.parse(yaml.safe_dump(data)), chip, graph))
    (task,) = made.tasks
    assert (task.task.block, task.tiling.m) == (block, block)
    assert again(made, graph).program.instructions == made.program.instructions


@pytest.mark.parametrize(
    ("change", "chip", "told"),
    [
        ({"block": 3}, {}, r"tasks.0.gemm.block: a block has fewer rows than the array, .*\(4, 2, 1\).* \(got 3\)"),
        ({"block": 8}, {}, r"leave out block for 8 \(got 8\)"),
        ({"m": 8}, {}, r"gemm.m: must be at most 4, which a tile's part of one has \(got 8\)"),
        ({"block": 0}, {}, r"block: .*greater than or equal to 1"),
        ({"block": True}, {}, r"block: must be a number \(got true\)"),
        ({}, {"dataflow": "weight_stationary"}, r"block: rows lie in blocks for an array that keeps its sums"),
        ({"block": 1, "m": 1}, {"rows": 1}, r"a power of two \(there is none\)"),
    ],
)
def test_blocks_that_no_array_takes_are_refused(change, chip, told):
    machine, graph, data = blocked(4, **chip)
    data["tasks"][0]["gemm"] |= change
    with pytest.raises(DescriptionError, match=told):
        mapping_of(Document.parse(yaml.safe_dump(data)), machine, graph)


@pytest.mark.slow(seconds=1)
@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)), st.sampled_from(["n_outer", "m_outer"]), st.booleans())
def test_tiles_of_rows_are_computed_in_the_order_that_a_mapping_says(sequence, order, resident):
    """Every row of the result is stored once, those of a tile together, whichever operand stays."""
    chip = effective(load_chip("npu-edge-int8"))
    graph = workload(json.dumps(GEMMS | {"gemms": [{"name": "first", "m": 72, "n": 96, "k": 80}]}))
    tiles = {"m": 16, "n": 96, "k": 80, "order": order, "resident": resident, "sequence": list(sequence)}
    data = yaml.safe_load(TEXT) | {"tasks": [{"operator": "first", "gemm": tiles}]}
    mapped = lower(chip, graph, mapping_of(Document.parse(yaml.safe_dump(data)), chip, graph))
    base = mapped.results["first"].address
    stores = [(i.memory.base - base, i.m * i.n) for i in mapped.program.instructions if i.opcode is Opcode.STORE]
    assert [start // (16 * 96) for start, _ in stores] == list(sequence)
    assert sum(size for _, size in stores) == 72 * 96
    assert again(mapped, graph).program.instructions == mapped.program.instructions
    assert run(mapped.program, chip).cycles >= mapped.bound.lower_bound_cycles


def test_a_table_is_read_in_whole_lines():
    """A rotation's tile of half a line would take the upper bytes of its angles for lower ones."""
    chip, graph = (
        effective(load_chip("npu-datacenter")),
        load_workload("llama3-8b", [("layers", "1"), ("sequence", "8")]),
    )
    graph, _ = fit_precision(chip, graph)
    data = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    entry = next(e for e in data["tasks"] if e["operator"] == "layer.rope")
    entry["vector"] = {"rows": 1, "cols": 64}
    with pytest.raises(DescriptionError, match=r"rope reads a table line by line: columns are multiples of 128"):
        mapping_of(Document.parse(yaml.safe_dump(data)), chip, graph)


def test_an_operator_without_an_entry_is_named():
    with pytest.raises(DescriptionError, match=r"tasks: there is no entry for the operator second"):
        read(TEXT[: TEXT.index("  - {operator: second")])


@pytest.mark.slow(seconds=1)
def test_products_need_not_take_along_what_follows_them():
    """Fewer operators on a product's results: those left out are operators of their own, and cost their traffic."""
    chip, graph = (
        effective(load_chip("npu-edge-int8")),
        load_workload("gpt2", GPT2).with_precision(load_chip("npu-edge-int8").tile.array.operands[0]),
    )
    data = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    entry = next(e for e in data["tasks"] if e["operator"] == "layer.up")
    assert entry["fused"] == ["layer.activation"]
    entry["fused"] = []
    place = data["tasks"].index(entry) + 1
    data["tasks"].insert(place, {"operator": "layer.activation", "vector": {"rows": 4, "cols": 3072}})
    apart = lower(chip, graph, mapping_of(Document.parse(yaml.safe_dump(data)), chip, graph))
    assert "layer.activation" in apart.program.operators
    whole = map_workload(chip, graph)
    assert run(apart.program, chip).cycles > run(whole.program, chip).cycles
    with pytest.raises(DescriptionError, match=r"is computed with layer.up here \(got 'layer.act"):
        mapping_of(Document.parse(yaml.safe_dump(data).replace("fused: []", "fused: null")), chip, graph)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda place: place[0] | {"operator": "layer.qvk"}, r"placement.0.operator: is not in gpt2.*layer.qkv"),
        (lambda place: place[0] | {"role": "weights"}, r"role: embedding.tokens has result, table, indices"),
        (lambda place: place[0] | {"levels": {"hbm": 1}}, r"placement.0.levels: csd-flash has dram, flash"),
        (lambda place: place[0] | {"levels": {"dram": 2}}, r"placement.0.levels: .* are 1 units \(got 2\)"),
        (lambda place: place[1], r"placement.1.role: is placed already"),
    ],
)  # fmt: skip
def test_what_is_placed_wrongly_is_said(change, told):
    chip = effective(load_chip("csd-flash"))
    graph, _ = fit_precision(chip, load_workload("gpt2", GPT2))
    data = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    data["placement"][0] = change(data["placement"])
    with pytest.raises(DescriptionError, match=told):
        mapping_of(Document.parse(yaml.safe_dump(data)), chip, graph)


@pytest.mark.slow(seconds=1)
def test_what_is_not_placed_and_what_finds_no_room_is_said():
    chip = effective(load_chip("csd-flash"))
    graph, _ = fit_precision(chip, load_workload("gpt2", GPT2))
    data = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    with pytest.raises(DescriptionError, match=r"placement: embedding.tokens's \w+ are not placed"):
        mapping_of(Document.parse(yaml.safe_dump(data | {"placement": data["placement"][1:]})), chip, graph)
    with pytest.raises(
        DescriptionError, match=r"several memory levels \(dram, flash\): the key 'placement' is missing"
    ):
        mapping_of(Document.parse(yaml.safe_dump({k: v for k, v in data.items() if k != "placement"})), chip, graph)
    small = effective(load_chip("csd-flash", [("memory.dram.capacity", "64 KiB")]))
    with pytest.raises(DescriptionError, match=r"what lies in csd-flash's memory.dram takes .*, it has 64 KiB"):
        mapping_of(Document.parse(yaml.safe_dump(data)), small, graph)


@pytest.mark.slow(seconds=1)
def test_sim_runs_the_mapping_that_map_wrote(tmp_path, capsys):
    file, asked = str(tmp_path / "m.yaml"), ["gpt2", "--set", "workload.layers=1", "--set", "workload.sequence=64"]
    assert main(["map", "npu-edge-int8", *asked, "-o", file]) == 0
    results = []
    for more in ([], ["--mapping", file]):
        capsys.readouterr()
        assert main(["sim", "npu-edge-int8", *asked, *more, "--json", "-"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    own, given_ = results
    assert own["cycles"] == given_["cycles"]
    assert own["asked"]["mapping"] is None
    assert len(given_["asked"]["mapping"]) == 64
    before = (tmp_path / "m.yaml").read_text()
    assert main(["map", "npu-edge-int8", *asked, "--mapping", file, "-o", file]) == 2
    assert (tmp_path / "m.yaml").read_text() == before
    assert main(["sim", "npu-edge-int8", *asked, "--mapping", file, "--search"]) == 2
    assert main(["sim", "npu-x4-ring", *asked, "--mapping", file]) == 2
    assert "not supported: --mapping for a system" in capsys.readouterr().err
    assert main(["sim", "systolic-ws-8", *asked, "--mapping", file]) == 2
    assert main(["map", "systolic-ws-8", "gpt2-block-gemms", "-o", file]) == 2


@pytest.mark.parametrize(
    ("chip", "tile", "rule"),
    [
        ("npu-edge", {"k": 16}, "groups of 32 rows: multiples of 32, or 128 (got 16)"),
        ("npu-edge", {"n": 12}, "multiples of 16, or 64 (got 12)"),
        ("npu-edge-int8", {"k": 2}, "multiples of 16, or 128 (got 2)"),
        ("npu-edge-int8", {"k": 12}, "multiples of 16, or 128 (got 12)"),
    ],
)
def test_parts_of_panels_and_folds_that_no_layout_has_are_refused(chip, tile, rule):
    """Fewer rows than a beat or a group of packed weights, columns that are neither panels nor halves of one."""
    stated = {"precision": "w4a16", "weight_group": 32} if chip == "npu-edge" else {"precision": "int8"}
    gemms = {"kind": "gemms", "name": "one", **stated, "gemms": [{"name": "one", "m": 8, "n": 64, "k": 128}]}
    machine, graph = effective(load_chip(chip)), workload(json.dumps(gemms))
    data = yaml.safe_load(mapping_text(map_workload(machine, graph)))
    data["tasks"][0]["gemm"] |= {"m": 8, "n": 64, "k": 128, "order": "m_outer", "resident": False} | tile
    data["tasks"][0].pop("cut", None)
    with pytest.raises(DescriptionError) as caught:
        mapping_of(Document.parse(yaml.safe_dump(data)), machine, graph)
    assert rule in str(caught.value)

"""Weights that are loaded ahead: in which order rings are filled, what it saves, and what is refused."""

import json
import random
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.document import DescriptionError, Document
from siliconloom.arch.isa import Opcode, Unit
from siliconloom.arch.word import LEVELS
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip import ahead, mapping, price, program, sooner
from siliconloom.mapper.chip.ahead import IN_TURN, Ahead, NotAhead, go_ahead
from siliconloom.mapper.chip.builder import ProgramBuilder
from siliconloom.mapper.chip.chosen import INTERRUPTED
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.lowering import Nest
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.program import lower
from siliconloom.mapper.chip.rings import affine
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import load_workload
from tests.execution.models import chip_of, config_of, drawn_models, graph_of
from tests.in_turn import examples
from tests.mapper.chip.early import chunked, loaded_early

SHORT = 200
"""Instructions of a program that the assembler checks in a second."""
TOKEN = [("phase", "decode"), ("context", "512")]


def in_turn_of(plan):
    """The same mapping with every load in its turn."""
    layout, tiled = plan.mapping.choice
    made = [{name: replace(chosen, ahead=IN_TURN, chunk=0) for name, chosen in each.items()} for each in tiled]
    return lower(plan.chip, plan.graph, replace(plan.mapping, choice=(layout, made)))


def executed(made):
    """What a program executes, loops unrolled: of each what it does and waits for, where, and on how many tiles."""
    found = []
    for number, line, at, counts in made.executions():
        first = all(index == 0 for level, index in enumerate(at) if line.first >> level & 1)
        last = all(at[level] == counts[level] - 1 for level in range(len(at)) if line.last >> level & 1)
        found.append(
            (
                (line.opcode, line.unit, line.function, line.m, line.n, line.k, line.pitch, line.local_pitch),
                tuple(each.at(at) for each in (line.memory, line.a, line.b, line.c, line.d)),
                (line.wait | first * line.first_wait, line.release, line.post | last * line.last_post),
                (line.opcode == Opcode.MATMUL and line.adds(at), line.operator, made.tiles_of(number, 0)),
            )
        )
    return found


def as_drafted(chip, graph):
    """The workload as it is mapped before the search of how weights are loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapping, "sooner", lambda chip, parts, rivals, made, *asked: made[0])
        return map_workload(chip, graph, Stopwatch(chip), search=False)


def mapped_of(folder, tiles, family, shape, dataflow, bus, dim, length, decode, dtype):
    """A small model as it is drawn, by estimates on so many tiles."""
    sets = [("phase", "decode"), ("context", str(length + 1))] if decode else [("sequence", str(length))]
    graph = graph_of(folder, config_of(family, 4, 2, dim, 2), [*sets, ("precision", dtype)])
    chip = chip_of(*shape, bus, dataflow=dataflow, dtype=dtype)
    return map_workload(chip.model_copy(update={"tile_count": tiles}), graph)


def unmoved(plan):
    """The same program, tiles that stand apart too, with every load in its turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "go_ahead", lambda *asked: None)
        return lower(plan.chip, plan.graph, plan.mapping)


@examples(3, 25, seconds=12)
def test_each_unit_and_each_ring_has_the_same_work_in_the_same_order(examples, tmp_path_factory):
    """Whatever goes ahead: the same instructions, and those of a unit other than loads' in the same order."""

    @settings(max_examples=examples, deadline=None)
    @given(**drawn_models(shortest=1) | {"family": st.sampled_from(["gpt2", "llama", "mixtral"])})
    def holds(seed, **drawn):
        plan = mapped_of(tmp_path_factory.mktemp("model"), 1 + seed % 3, **drawn)
        chip, early = plan.chip, loaded_early(plan, random.Random(seed))
        plain = unmoved(early)
        one, other = executed(plain.program), executed(early.program)
        assert Counter(one) == Counter(other)
        assert [each for each in one if each[0][1] != Unit.LOAD] == [each for each in other if each[0][1] != Unit.LOAD]
        for number, semaphore in enumerate(plain.program.semaphores):
            bit = 1 << number if semaphore.name.endswith("_free") else 0
            assert [each for each in one if each[2][0] & bit] == [each for each in other if each[2][0] & bit]
        read = mapping_of(Document.parse(mapping_text(early)), chip, early.graph)
        assert lower(chip, early.graph, read).program == early.program
        Stopwatch(chip)(early.program)  # it ends
        if len(early.program.instructions) < SHORT:
            check_program(early.program, chip)

    holds()


def joined(found):
    """What is executed, loads of bytes that adjoin taken together where nothing is waited for or told in between."""
    made = []
    for each in found:
        (opcode, unit, function, rows, size, *rest), (memory, local, *others), (wait, *told), more = each
        if opcode == Opcode.LOAD and rest[-2:] == [size, size]:  # rows that adjoin are one
            rows, size, rest = 1, rows * size, [*rest[:-2], 0, 0]
        if made and opcode == Opcode.LOAD and rows == 1 and not wait:
            (*_, before_rows, before, _, _, _), (from_memory, to_local, *_), (waits, _, posts), _ = made[-1]
            adjoin = (from_memory + before, to_local + before) == (memory, local)
            if made[-1][0][0] == opcode and before_rows == 1 and adjoin and not posts:
                memory, local, size, wait = from_memory, to_local, before + size, waits
                made.pop()
        made.append(((opcode, unit, function, rows, size, *rest), (memory, local, *others), (wait, *told), more))
    return made


@examples(3, 25, seconds=12)
def test_chunks_bring_the_same_bytes_in_the_same_order(examples, tmp_path_factory):
    """Whatever their size: all else of a program is as without them."""

    @settings(max_examples=examples, deadline=None)
    @given(**drawn_models(shortest=1) | {"family": st.sampled_from(["gpt2", "llama", "mixtral"])})
    def holds(seed, **drawn):
        plan = mapped_of(tmp_path_factory.mktemp("model"), 1 + seed % 3, **drawn)
        layout, _ = plan.mapping.choice
        choice = layout, chunked(plan, random.Random(seed), 1)
        cut = lower(plan.chip, plan.graph, replace(plan.mapping, choice=choice))
        assert joined(executed(cut.program)) == joined(executed(plan.program))
        taken = [max((each.n for each in made.program.instructions if each.m == 1), default=0) for made in (cut, plan)]
        assert taken[0] <= taken[1]
        read = mapping_of(Document.parse(mapping_text(cut)), plan.chip, plan.graph)
        assert lower(plan.chip, plan.graph, read).program == cut.program
        Stopwatch(plan.chip)(cut.program)

    holds()


def test_chunks_are_written_out_where_no_level_of_loops_is_left():
    def loads(outer):
        context = SimpleNamespace(builder=ProgramBuilder(), tile=load_chip("npu-edge").tile, stored=0)
        ring = context.builder.ring("weights", 0, 1024)
        nest = Nest(context, SimpleNamespace(depends=False))
        with ExitStack() as loops:
            for _ in range(outer):
                loops.enter_context(context.builder.loop(2))
            nest.load_in_chunks(ring, 500, 128, affine(4096), opens=True, closes=True, offset=64)
        return executed(context.builder.finish(("w",), draft=True))

    looped, written = (loads(outer) for outer in (LEVELS - 1, LEVELS))
    assert len(looped) == 4 * 2 ** (LEVELS - 1)
    assert [each[1:3] for each in looped[:4]] == [each[1:3] for each in written[:4]]
    assert [each[0][4] for each in written[:4]] == [128, 128, 128, 116]


def test_chunks_are_no_longer_than_what_is_asked_for():
    chip, graph, text = text_of()
    made = lower(chip, graph, mapping_of(Document.parse(text), chip, graph))
    names = made.program.operators
    for task in yaml.safe_load(text)["tasks"]:
        if chunk := task.get("gemm", {}).get("chunk"):
            size, number = int(chunk.split()[0]), names.index(task["operator"])
            loads = [
                each for each in made.program.instructions if each.operator == number and each.opcode == Opcode.LOAD
            ]
            assert max(each.n for each in loads) == size
    assert "chunk" in text


SAVED = {"npu-balanced gpt2": 0.06, "npu-balanced smollm2-135m": 0.06, "npu-edge-int8 smollm2-135m": 0.003}
"""Least shares of a token's time that are saved; 7.3 %, 8.7 % and 0.6 % when they were written down."""


@pytest.mark.parametrize("case", SAVED)
def test_a_token_of_a_small_model_waits_less(case):
    name, model = case.split()
    chip = effective(load_chip(name))
    plan = map_workload(chip, load_workload(model, TOKEN), Stopwatch(chip), search=False)
    before, after = (Stopwatch(chip)(each.program) for each in (in_turn_of(plan), plan))
    assert after < (1 - SAVED[case]) * before
    assert Counter(executed(plan.program)) == Counter(executed(unmoved(plan).program))
    assert plan.bound.lower_bound_cycles <= after


def text_of():
    chip = effective(load_chip("npu-balanced"))
    graph = load_workload("gpt2", TOKEN)
    return chip, graph, mapping_text(map_workload(chip, graph, Stopwatch(chip), search=False))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "weights: layer.feed_forward_norm",
            "weights: layer.attention",
            "layer.up cannot be loaded before layer.attention waits for results: other loads fill the ring weights",
        ),
        (
            "order: n_outer, resident: true",
            "order: n_outer, resident: true, ahead: {weights: layer.output}",
            "layer.output cannot be loaded before layer.output waits for results: no load of it waits before them",
        ),
        (
            "weights: layer.feed_forward_norm",
            "weights: layer.down",
            "is not what the block of layer.up computes before it, nor layer.up (got 'layer.down')",
        ),
        (
            "weights: layer.feed_forward_norm",
            "weights: layer.feed_forward_nrom",
            "did you mean 'layer.feed_forward_norm'?",
        ),
        (
            "ahead: {weights: layer.feed_forward_norm",
            "ahead: {wieghts: layer.feed_forward_norm",
            "did you mean 'weights'?",
        ),
        (
            "ahead: {weights: layer.feed_forward_norm",
            "ahead: {values: layer.feed_forward_norm",
            "the first that the ring values is filled with is in a loop, or there is none",
        ),
        ("chunk: 73728 B", "chunk: 73729 B", "transfers are whole beats of 512 B (tile.dma.bytes_per_cycle)"),
        ("chunk: 73728 B", "chunk: 1 MiB", "no transfer of weights of layer.up is longer than 786,432 B"),
        ("chunk: 73728 B", "chunk: 0 B", "chunk"),
        ("attention: {queries: 1,", "attention: {chunk: 1 KiB, queries: 1,", "chunk"),
    ],
)
def test_what_cannot_be_loaded_ahead_is_said_where_it_stands(old, new, told):
    chip, graph, text = text_of()
    assert text.count(old) == 1
    with pytest.raises(DescriptionError) as error:
        mapping_of(Document.parse(text.replace(old, new)), chip, graph)
    assert told in str(error.value)
    line = text[: text.index(old)].count(chr(10)) + 1
    assert f"{line}:" in str(error.value)


@pytest.mark.slow(seconds=3)
def test_what_is_wrong_in_a_later_repetition_is_said_there():
    chip = effective(load_chip("csd-flash"))
    plan = map_workload(chip, load_workload("mixtral-8x7b", TOKEN), Stopwatch(chip), search=False)
    data = yaml.safe_load(mapping_text(plan))
    part = next(part for part in plan.mapping.parts if part.first)
    name = next(task.operator.name for task in part.tasks if task.operator.name.endswith(".output"))
    entries = [each for each in data["tasks"] if each["operator"] == name]
    data["tasks"] = [each for each in data["tasks"] if each is entries[0] or each["operator"] != name]
    early = {**entries[0]["gemm"], "ahead": {"weights": part.tasks[0].operator.name}}
    data["tasks"].append({**entries[0], "repetition": part.first, "gemm": early})
    text = yaml.safe_dump(data, sort_keys=False)
    with pytest.raises(DescriptionError, match=r"other loads fill the ring weights|is in a loop") as error:
        mapping_of(Document.parse(text), chip, plan.graph)
    assert f"tasks.{len(data['tasks']) - 1}.gemm.ahead.weights" in str(error.value)


def test_chunks_of_rows_that_are_no_longer_are_refused(tmp_path):
    """A panel of 48 columns on an array of 128 comes in rows of 48 bytes, which no chunk cuts."""
    work = tmp_path / "list.yaml"
    work.write_text("{kind: gemms, name: l, precision: int8, gemms: [{name: g, m: 8, n: 48, k: 96}]}")
    sizes = {"tile.array.cols": 128, "tile.dma.bytes_per_cycle": 16, "memory.dram.access_bytes": 16}
    chip = load_chip("npu-edge-int8", [(key, str(value)) for key, value in sizes.items()])
    plan = map_workload(chip, load_workload(str(work)))
    data = yaml.safe_load(mapping_text(plan))
    (task,) = data["tasks"]
    task["gemm"] |= {"n": 48, "k": 32, "chunk": "32 B"}
    with pytest.raises(DescriptionError, match=r"tasks.0.gemm.chunk: weights of g come row by row"):
        mapping_of(Document.parse(yaml.safe_dump(data)), chip, plan.graph)


def test_launched_operators_load_nothing_ahead():
    _, graph, text = text_of()
    launched = load_chip("npu-balanced", [("tile.sequencer.launch_cycles", "100")])
    with pytest.raises(DescriptionError, match="are launched"):
        mapping_of(Document.parse(text), launched, graph)
    found = simulate(
        "npu-balanced", "gpt2", [("workload." + k, v) for k, v in TOKEN] + [("tile.sequencer.launch_cycles", "100")]
    )
    assert "ahead" not in mapping_text(found.plan)


def test_what_finds_no_free_slot_would_wait_for_ever():
    """Weights of `output`, `up` and `down` before `output` waits for attention: three tiles for two slots."""
    chip, graph = effective(load_chip("npu-balanced")), load_workload("gpt2", TOKEN)
    plan = as_drafted(chip, graph).mapping
    layout, tiled = plan.choice
    number, names = next(
        (n, [task.operator.name for task in part.tasks]) for n, part in enumerate(plan.parts) if part.count > 1
    )
    made = [dict(each) for each in tiled]
    output = names.index("layer.output")
    for name in ("layer.up", "layer.down"):
        reach = names.index(name) + 1 - output
        made[number][name] = replace(made[number][name], ahead=Ahead(weights=reach))
    asked = replace(plan, choice=(layout, made))
    with pytest.raises(NotAhead, match="the 2 slots of the ring weights are taken there"):
        lower(chip, graph, asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "SLOTS", 3)
        stuck = lower(chip, graph, asked)
    with pytest.raises(LoomError, match="deadlock"):
        Stopwatch(chip)(stuck.program)
    made[number]["layer.down"] = replace(made[number]["layer.down"], ahead=IN_TURN)
    Stopwatch(chip)(lower(chip, graph, replace(plan, choice=(layout, made))).program)


@pytest.mark.parametrize("after", [0, 3, 12])
def test_an_interrupted_search_has_the_best_that_it_has_found(after, monkeypatch):
    chip = effective(load_chip("npu-balanced"))
    graph = load_workload("gpt2", TOKEN)
    with monkeypatch.context() as patch:
        patch.setattr(price, "PART", 0.0)
        plain = as_drafted(chip, graph)
    tried, found = [], []

    def interrupted(self, changes, gains=sooner.GAINS, wrapped=sooner._Search._take):
        if len(tried) == after:
            raise KeyboardInterrupt
        tried.append(changes)
        better = wrapped(self, changes, gains)
        found.append(self.least)
        return better

    monkeypatch.setattr(sooner._Search, "_take", interrupted)
    monkeypatch.setattr(price, "PART", 0.0)
    made = map_workload(chip, graph, Stopwatch(chip), search=False)
    assert made.searched.interrupted
    assert INTERRUPTED in made.notes
    least = min([Stopwatch(chip)(plain.program), *found])
    assert Stopwatch(chip)(made.program) == least


def test_others_are_tried_where_the_first_draft_gains():
    """The fastest with every load in its turn is not the fastest of all."""
    chip, tried = effective(load_chip("npu-balanced")), []
    graph = load_workload("llama3-8b", [("phase", "decode"), ("context", "2048")])

    def watched(self, bound, wrapped=sooner._Search.run):
        before = self.least
        wrapped(self, bound)
        tried.append((before, self.least))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sooner._Search, "run", watched)
        patch.setattr(price, "PART", 0.0)
        made = map_workload(chip, graph, Stopwatch(chip), search=False)
    assert len(tried) > 1
    assert Stopwatch(chip)(made.program) == min(after for _, after in tried) < tried[0][1]


def test_maps_say_what_is_loaded_ahead(capsys):
    sets = [word for key, value in TOKEN for word in ("--set", f"workload.{key}={value}")]
    assert main(["map", "npu-balanced", "gpt2", *sets, "--json", "-"]) == 0
    rows = {row["name"]: row["ahead"] for row in json.loads(capsys.readouterr().out)["tasks"]}
    assert rows["layer.up"] == {"weights": "layer.feed_forward_norm"}
    assert rows["layer.attention"] == {}
    assert main(["map", "npu-balanced", "gpt2", *sets]) == 0
    assert "ahead of" in capsys.readouterr().out


def two_tasks(turns, looped):
    """Weights are loaded ``turns`` times, then what waits, then products; then another's weights, in a loop or not."""
    builder = ProgramBuilder()
    stored = builder.semaphore("stored", 1, "dependency")
    weights, moving = builder.ring("weights", 0, 64), builder.ring("moving", 256, 64)

    def filled(ring, **waits):
        builder.load(ring, 1, 8, 0, affine(0), **waits)

    def multiplied():
        builder.barrier(Unit.MATMUL, wait=weights.full_bit, release=weights.free_bit)
        weights.read()

    begins = [0]
    with builder.loop(turns):
        filled(weights)
    filled(moving, first_wait=1 << stored)
    with builder.loop(turns):
        multiplied()
    begins.append(len(builder.drafts))
    with builder.loop(2 if looped else 1):
        filled(weights)
        filled(moving, first_wait=1 << stored)
        multiplied()
    begins.append(len(builder.drafts))
    wanted = [IN_TURN, Ahead(weights=2)]
    go_ahead(builder, begins, ["first", "second"], wanted, {"weights": weights}, stored)
    return [draft["opcode"] for draft in builder.drafts]


def test_slots_are_counted_as_often_as_loops_fill_them():
    load, barrier = Opcode.LOAD, Opcode.BARRIER
    assert two_tasks(1, looped=False) == [load, load, load, barrier, load, barrier]
    with pytest.raises(NotAhead, match=r"weights of second cannot be loaded before first waits.* the 2 slots .* taken"):
        two_tasks(2, looped=False)


def test_what_is_loaded_in_a_loop_does_not_go_ahead():
    with pytest.raises(NotAhead, match="the first that the ring weights is filled with is in a loop"):
        two_tasks(1, looped=True)

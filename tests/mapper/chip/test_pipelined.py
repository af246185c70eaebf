"""Software pipelines over nested tiles: their order, how much is written out, and what attention of a token gains."""

import itertools
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.document import Document
from siliconloom.arch.errors import DescriptionError
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.divisions import VALUES_SHARE
from siliconloom.mapper.chip.lowering import Nest
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.pipelined import MOST_WRITTEN, outside, pipeline
from siliconloom.mapper.chip.rings import Loop
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import load_workload

TILE = load_chip("npu-edge-int8").tile
SIZES = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 4)).map(lambda s: (s[0], min(s))), min_size=1, max_size=4)


def nest_of(recorded):
    """A task's, of which nothing depends and which nothing launches."""
    return Nest(SimpleNamespace(builder=recorded, tile=TILE), SimpleNamespace(depends=False))


class Recorded:
    """What a builder would be told: loops, and what stands in them."""

    def __init__(self):
        self.builder, self.here, self.levels = self, [], 0

    @contextmanager
    def loop(self, count):
        outer, self.here = self.here, []
        level = None if count == 1 else self.levels
        self.levels += level is not None
        yield Loop(level, count)
        self.levels -= level is not None
        outer.append((level, count, self.here))
        self.here = outer

    def say(self, name):
        return lambda walks: self.here.append((name, tuple(walks)))


def happens(written, indices=()):
    """Stages in the order in which they run, with where the tile begins in every dimension and its size."""
    for each in written:
        if len(each) == 3:
            level, count, inside = each
            for index in range(count):
                yield from happens(inside, indices if level is None else (*indices[:level], index))
            continue
        name, walks = each
        place = []
        for walk in walks:
            turn = 0 if walk.loop.level is None else indices[walk.loop.level]
            first = walk.first is not None and all(indices[n] == 0 for n in bits(walk.first))
            place.append((walk.start + turn * walk.size, walk.size, first))
        yield name, tuple(place)


def bits(mask):
    return [n for n in range(mask.bit_length()) if mask >> n & 1]


@given(sizes=SIZES, outer=st.integers(0, 3), data=st.data())
def test_one_stage_runs_a_tile_ahead_of_the_other(sizes, outer, data):
    """Every tile once in each stage, in the order of the nest, ahead by one within a pipeline; told what is first."""
    outer = min(outer, len(sizes) - 1)
    recorded = Recorded()
    ends = []
    nest = nest_of(recorded)
    head, tail = recorded.say("head"), recorded.say("tail")
    told = data.draw(st.one_of(st.none(), st.integers(outer, len(sizes))))
    unlike = data.draw(st.one_of(st.none(), st.integers(outer, len(sizes) - 1)))
    pipeline(nest, sizes, head, tail, outer, lambda: ends.append(len(ends)), told, unlike)
    assert nest.walks == []
    ranges = [[(s, min(size, total - s), s == 0) for s in range(0, total, size)] for total, size in sizes]
    pipelines = [list(itertools.product(*ranges[outer:]))] * prod(len(each) for each in ranges[:outer])
    expected = []
    for before, tiles in zip(itertools.product(*ranges[:outer]), pipelines, strict=True):
        order = [("head", 0)]
        for number in range(1, len(tiles)):
            order += [("head", number), ("tail", number - 1)]
        order.append(("tail", len(tiles) - 1))
        expected += [(name, (*before, *tiles[number])) for name, number in order]
    assert list(happens(recorded.here)) == expected
    if unlike is not None:  # no loop goes over these
        assert all(walks[unlike].loop.level is None for _, walks in written(recorded.here))
    if told is not None:  # and exactly there
        is_last = [[s + size >= total for s in range(0, total, size)] for total, size in sizes]
        ends = list(itertools.product(*is_last))
        assert [last for name, last in lasts(recorded.here, told) if name == "head"] == [all(e[told:]) for e in ends]


def lasts(written, told):
    """Stages as they run, and whether they were told that a tile is the last one in dimensions from ``told`` on."""
    for each in written:
        if len(each) == 3:
            for _ in range(each[1]):
                yield from lasts(each[2], told)
        else:
            # a mask that is not empty holds in one round of a loop only
            yield each[0], all(walk.last == 0 for walk in each[1][told:])


@given(sizes=SIZES, most=st.integers(1, MOST_WRITTEN), data=st.data())
def test_what_is_unlike_is_in_the_pipeline_and_all_that_is_in_it(sizes, most, data):
    unlike = data.draw(st.integers(0, len(sizes) - 1))
    assert outside(sizes, 1, most, unlike) <= unlike


@given(sizes=SIZES, parts=st.integers(1, 8), most=st.integers(1, MOST_WRITTEN))
def test_no_more_is_written_out_than_may_be(sizes, parts, most):
    """Except for the innermost dimension, which always has its pipeline."""
    outer = outside(sizes, parts, most)
    recorded = Recorded()
    pipeline(nest_of(recorded), sizes[outer:], recorded.say("h"), str)
    innermost = outside(sizes, 1, 1) == outer
    count = sum(1 for _ in written(recorded.here))
    assert innermost or parts * count <= most
    assert outer == 0 or any(-(-total // size) > 1 for total, size in sizes[:outer]) or innermost


def written(here):
    for each in here:
        if len(each) == 3:
            yield from written(each[2])
        else:
            yield each


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("workload", "batch", "context"), [("llama3-8b", 8, 4096), ("llama3-8b", 64, 2048), ("llama2-7b", 1, 4096)]
)
def test_attention_of_a_token_reads_its_cache_at_95_percent_of_the_bandwidth(workload, batch, context):
    """54, 64 and 58 % where heads followed one another; the bound is the bytes that must be read."""
    sets = {"phase": "decode", "batch": batch, "context": context, "layers": 2}
    graph = load_workload(workload, [(key, str(value)) for key, value in sets.items()])
    result = simulate(load_chip("npu-datacenter"), graph)
    (attention,) = (each for each in result.result()["operators"] if each["name"] == "layer.attention")
    assert attention["bound"] == "memory"
    assert attention["bound_cycles"] >= 0.95 * attention["cycles"]


def ringed(dataflow="weight_stationary", rows="8"):
    sets = {"tile.array.rows": rows, "tile.array.cols": "8", "tile.array.dataflow": dataflow, "tile.vector.lanes": "8"}
    if dataflow == "output_stationary":
        sets["tile.array.load_rows"] = "1"
    chip = load_chip("npu-edge-int8", list(sets.items()))
    graph = load_workload("gpt2", [("layers", "1"), ("phase", "decode"), ("context", "300"), ("precision", "int8")])
    return chip, graph


def test_values_have_a_ring_of_their_own_where_it_pays_and_no_more_of_the_scratchpad_than_their_share():
    chip = load_chip("npu-datacenter")
    graph = load_workload("llama3-8b", [("layers", "1"), ("phase", "decode"), ("context", "2048"), ("batch", "8")])
    mapped = map_workload(chip, graph, Stopwatch(chip), search=False)
    assert 0 < mapped.layout.values <= chip.tile.scratchpad.capacity // VALUES_SHARE
    names = [semaphore.name for semaphore in mapped.program.semaphores]
    assert {"values_full", "values_free"} <= set(names)
    again = mapping_of(Document.parse(mapping_text(mapped)), chip, graph)
    assert again.choice[0] == mapped.layout


def test_a_ring_without_semaphores_is_refused():
    chip, graph = ringed("output_stationary")
    text = mapping_text(map_workload(chip, graph)).replace("layout: {", "layout: {values: 64 B, ")
    assert "values: 64 B" in text
    with pytest.raises(DescriptionError, match=r"leave out layout\.values"):
        mapping_of(Document.parse(text), chip, graph)


@pytest.mark.slow(seconds=1)
def test_a_program_that_would_not_fit_is_written_with_short_pipelines():
    """At 512 tokens some 240 instructions more than with loops around the tiles of one head."""
    chip = load_chip("npu-datacenter")
    graph = load_workload("llama3-8b", [("layers", "2"), ("sequence", "512")])
    whole = map_workload(chip, graph)
    words = len(whole.program.instructions)
    small = load_chip("npu-datacenter", [("tile.sequencer.program_words", str(words - 1))])
    short = map_workload(small, graph)
    assert len(short.program.instructions) < words

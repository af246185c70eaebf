"""The sampler of `benchmarks.mapper`: its mappings are legal, and it finds a better one where there is one."""

import pytest
from msgspec.structs import replace

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.mapper.chip import layout
from siliconloom.mapper.chip.drafts import forget
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.written import mapping_text
from siliconloom.sim.chip.engine import Stopwatch

pytestmark = pytest.mark.checkout

CASES = ("odd", "depth of 16", "scores of four rows", "decode of 1, own keys", "prompt of 512")
CHIPS = ("npu-edge-int8", "tpu-v4")


def graph(name):
    from benchmarks import mapper

    if name in mapper.PRODUCTS:
        return mapper.product_graph(**mapper.PRODUCTS[name])
    return mapper.attention_graph(*mapper.ATTENTION[name])


def space(chip, name, seed):
    from benchmarks.sampling import Space

    return Space(load_chip(chip), graph(name), seed)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_samples_are_legal(chip, name, seed):
    made = space(chip, name, seed)
    samples = [made.drawn() for _ in range(6)]
    samples += [made.changed(sample) for sample in samples]
    for sample in samples:
        try:
            program = made.alone(made.read(made.document(sample))).program
        except LoomError as error:  # rows that are moved in pieces make programs that are too long
            if "program_words" not in str(error):
                raise
            continue
        if len(program.instructions) <= 200:  # the assembler takes a second for longer ones
            check_program(program, made.chip)
    assert len({str(made.document(sample)) for sample in samples}) > 4


@pytest.mark.slow(seconds=1)
def test_a_sample_of_the_mappers_choice_is_its_program(seed):
    made = space("tpu-v4", "contexts of 96 heads", seed)
    own = map_workload(made.chip, made.graph, Stopwatch(made.chip))
    again = made.alone(made.read(made.document(made.sample_of(own))))
    assert mapping_text(again).splitlines()[3:] == mapping_text(own).splitlines()[3:]
    assert Stopwatch(made.chip)(again.program) == Stopwatch(made.chip)(own.program)


@pytest.mark.slow(seconds=1)
def test_a_better_mapping_that_is_planted_is_found(monkeypatch, seed):
    """With little room for sums in every division the mapper's program is slow; other divisions have that room."""
    from benchmarks.sampling import search

    made = space("npu-edge-int8", "square 512", seed)
    monkeypatch.setattr("siliconloom.mapper.chip.mapping.divide_anew", lambda chip, graph, parts, made, *_: made)
    best = Stopwatch(made.chip)(map_workload(made.chip, made.graph, Stopwatch(made.chip)).program)
    divided = layout.layouts

    def small(*asked):
        return [replace(each, partial=1024, weights=1024, moving=1024) for each in divided(*asked)]

    monkeypatch.setattr("siliconloom.mapper.chip.divisions.layouts", small)
    forget()  # divisions are kept with drafts
    poor = map_workload(made.chip, made.graph, Stopwatch(made.chip))
    forget()
    slow = Stopwatch(made.chip)(poor.program)
    found = search(made, 60, poor)
    assert slow > 1.2 * best
    assert found.cycles < 1.02 * best


def test_what_is_refused_is_counted(seed):
    from benchmarks.sampling import Space, search

    chip = load_chip("npu-edge-int8", [("tile.sequencer.program_words", "8")])
    found = search(Space(chip, graph("square 512"), seed), 5)
    assert (found.cycles, found.illegal) == (None, 5)

"""The pipeline of instructions as Konata reads it: a strict reader finds every stage where the simulation has it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.isa import Opcode
from siliconloom.arch.timeline import InstructionStream, StagedInstruction
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.timeline import instruction_stream
from siliconloom.render.kanata import STAGES, kanata_text
from siliconloom.workloads import load_workload
from tests.render.kanata_log import read_log

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
UNITS = {1: "load", 2: "store", 3: "array", 4: "vector"}


@st.composite
def streams(draw):
    staged = []
    for _ in range(draw(st.integers(0, 12))):
        times = [draw(st.integers(0, 50))]
        for _ in STAGES:
            times.append(times[-1] + draw(st.integers(0, 3)))
        staged.append(
            StagedInstruction(draw(st.integers(0, 99)), draw(st.sampled_from([*UNITS, 7])), draw(TEXT), "o", *times)
        )
    staged.sort(key=lambda each: each.issued)
    return InstructionStream("t", UNITS, tuple(staged))


@given(streams())
def test_every_stage_is_read_back(stream):
    found = read_log(kanata_text(stream))
    assert len(found) == len(stream.instructions)
    for each, logged in zip(stream.instructions, found, strict=True):
        times = (each.issued, each.queued, each.started, each.begun, each.read, each.done)
        spans = zip(STAGES, times, times[1:], strict=False)
        assert logged.stages == [(name, begin, end) for name, begin, end in spans if end > begin]
        assert (logged.simulator, logged.thread) == (each.number, each.unit)
        assert logged.retired[1] == each.done
    places = [logged.retired[0] for logged in found]
    assert sorted(places) == list(range(len(found)))
    in_order = sorted(found, key=lambda logged: logged.retired[0])
    assert [logged.retired[1] for logged in in_order] == sorted(logged.retired[1] for logged in found)


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ("Kanata\t0003\n", "no header"),
        ("Kanata\t0004\nC=\t0\nS\t0\t0\tF\n", "has not begun"),
        ("Kanata\t0004\nC=\t0\nC\t-1\n", "does not go on"),
        ("Kanata\t0004\nC=\t0\nI\t1\t0\t0\n", "one after the other"),
        ("Kanata\t0004\nC=\t0\nI\t0\t0\t0\n", "never retires"),
        ("Kanata\t0004\nC=\t0\nI\t0\t0\t0\nS\t0\t0\tF\nS\t0\t0\tX\n", "has not ended"),
        ("Kanata\t0004\nC=\t0\nI\t0\t0\t0\nS\t0\t0\tF\nE\t0\t0\tX\n", "has not begun"),
        ("Kanata\t0004\nC=\t0\nI\t0\t0\t0\nR\t0\t0\t0\nL\t0\t0\tx\n", "has retired"),
        ("Kanata\t0004\nC=\t0\nI\t0\t0\n", "so many columns"),
    ],
)
def test_the_reader_is_strict(log, problem):
    with pytest.raises(ValueError, match=problem):
        read_log(log)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("window", [None, (20_000, 30_000)])
def test_stages_are_those_of_the_simulation(window):
    chip = load_chip("npu-edge-int8")
    graph = load_workload("gpt2", [("layers", "1"), ("sequence", "64")])
    simulation = simulate(chip, graph, trace_limit=5_000, window=window)
    stream = instruction_stream(simulation)
    program, outcome = simulation.plan.program, simulation.run
    assert len(stream.instructions) == len(outcome.trace) > 30
    found = read_log(kanata_text(stream))
    issue = chip.tile.sequencer.issue_cycles
    rows = sorted(
        (n, queued - issue, started, read, done) for n, _, read, done, started, *_, queued in outcome.trace.tolist()
    )
    assert rows == sorted((e.number, e.issued, e.started, e.read, e.done) for e in stream.instructions)
    of_unit = {}
    for each, logged in zip(stream.instructions, found, strict=True):
        assert each.issued < each.queued <= each.started <= each.begun <= each.read <= each.done
        assert program.instructions[each.number].opcode not in (Opcode.LOOP, Opcode.NEXT, Opcode.END)
        assert logged.labels[0].startswith(f"{each.number}: {stream.units[each.unit]}: ")
        of_unit.setdefault(each.unit, []).append((each.queued, each.started))
    depth = chip.tile.sequencer.queue_depth
    for queue in of_unit.values():  # it is left in the order in which it was entered, and holds so many
        assert [started for _, started in sorted(queue)] == sorted(started for _, started in queue)
        assert all(later[0] > sooner[1] for sooner, later in zip(queue, queue[depth:], strict=False))
    issued = sorted(each.issued for each in stream.instructions)
    assert all(later - sooner >= issue for sooner, later in pairwise(issued)), "one sequencer"
    if window is not None:
        assert all(each.started < window[1] and each.done > window[0] for each in stream.instructions)


@pytest.mark.slow(seconds=1)
def test_a_suffix_chooses_the_format(tmp_path, capsys):
    sets = ["--set", "workload.layers=1", "--set", "workload.sequence=16"]
    file = tmp_path / "run.KANATA"
    assert main(["sim", "npu-edge-int8", "gpt2", *sets, "--trace", str(file)]) == 0
    assert read_log(file.read_text())
    other = tmp_path / "run.json"
    assert main(["sim", "npu-edge-int8", "gpt2", *sets, "--trace", str(other)]) == 0
    assert other.read_text().startswith('{"traceEvents"')
    capsys.readouterr()
    assert main(["plan", "dgx-h100", "gpt2", "--trace", str(tmp_path / "plan.kanata")]) == 2
    assert "instructions of one chip" in capsys.readouterr().err
    assert not (tmp_path / "plan.kanata").exists()

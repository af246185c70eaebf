"""Fast-forward against every event: the same numbers, all of them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, chip_names, load_chip
from siliconloom.arch.isa import Instruction, Opcode, Program, Semaphore
from siliconloom.arch.listing import disassemble
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip import kernel, recurrence
from siliconloom.sim.chip import snapshot as snapshot
from siliconloom.sim.chip.engine import run
from siliconloom.workloads import load_workload, workload_names
from tests.sim.programs import chips, pipelines, programs

REPORTED = (
    "cycles",
    "busy",
    "stalls",
    "start",
    "end",
    "exclusive",
    "operator_busy",
    "counters",
    "executions",
    "waiting",
)


def same(fast, exact):
    """Names of the reported numbers that differ."""
    assert exact.events_skipped == exact.periods == exact.lookups == 0
    assert fast.events + fast.events_skipped == exact.events
    return [name for name in REPORTED if not np.array_equal(getattr(fast, name), getattr(exact, name))]


def outcome(program, chip, **options):
    """The run, or the words of its error."""
    try:
        return run(program, chip, **options)
    except LoomError as error:
        return str(error)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(programs(iterations=24, deepest=3), chips())
def test_random_programs_on_random_machines(program, chip):
    exact, fast = outcome(program, chip, exact=True), outcome(program, chip)
    if isinstance(exact, str):
        event(exact[:8])
        assert fast == exact
        return
    event(f"periods {fast.periods > 0}, lookups {fast.lookups > 0}")
    assert same(fast, exact) == [], disassemble(program)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(), chips())
def test_random_pipelines_on_random_machines(program, chip):
    exact, fast = run(program, chip, exact=True), run(program, chip)
    event(f"skipped {10 * fast.events_skipped // (fast.events + fast.events_skipped)}0 %")
    assert same(fast, exact) == [], disassemble(program)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(iterations=16), chips(), st.integers(1, 5), st.integers(3000, 20_000))
def test_rooms_that_are_full_cost_jumps_and_nothing_else(program, chip, known, pool):
    exact = run(program, chip, exact=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "KNOWN", known)
        patch.setattr(recurrence, "POOL", pool)
        fast = run(program, chip)
    assert same(fast, exact) == [], disassemble(program)
    event("fewer jumps" if fast.events > run(program, chip).events else "as many")


def test_loops_that_no_clock_could_run_through_are_an_error_at_once():
    loops = [Instruction(opcode=Opcode.LOOP, m=2**24 - 1)] * 4
    ends = [Instruction(opcode=Opcode.NEXT)] * 4
    for chip in ("npu-edge-int8", "systolic-ws-8"):
        with pytest.raises(LoomError, match="does not fit 62 bits"):
            run(Program((*loops, *ends, Instruction(opcode=Opcode.END))), load_chip(chip))


def test_a_semaphore_that_is_posted_too_often_overflows_all_the_same():
    post = Instruction(opcode=Opcode.LOAD, m=1, n=1, post=1)
    loop, end = Instruction(opcode=Opcode.LOOP, m=1000), Instruction(opcode=Opcode.NEXT)
    program = Program((loop, loop, post, end, end, Instruction(opcode=Opcode.END)), (Semaphore("full"),))
    with pytest.raises(LoomError, match="overflows at instruction 2"):
        run(program, load_chip("npu-edge-int8"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(iterations=16), chips(), st.floats(0, 1), st.floats(0, 0.2))
def test_the_trace_of_a_window_has_every_event_in_it(program, chip, where, share):
    exact = run(program, chip, exact=True, trace_limit=200_000)
    begin = int(where * exact.cycles)
    window = begin, begin + 1 + int(share * exact.cycles)
    fast = run(program, chip, trace_limit=200_000, window=window)
    start, done = exact.trace[:, 4], exact.trace[:, 3]
    assert np.array_equal(fast.trace, exact.trace[(start < window[1]) & (done > window[0])])
    assert same(fast, exact) == []
    for _, jumped_from, jumped_to, *_ in fast.folds.tolist():
        event("jumps before" if jumped_to <= window[0] else "jumps after" if jumped_from >= window[1] else "around")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(iterations=16), chips())
def test_a_folded_trace_and_its_jumps_account_for_every_execution(program, chip):
    exact = run(program, chip, exact=True, trace_limit=200_000)
    fast = run(program, chip, trace_limit=200_000)
    recorded = {tuple(row) for row in fast.trace.tolist()}
    assert recorded <= {tuple(row) for row in exact.trace.tolist()}
    assert (fast.trace_rows < exact.trace_rows) == (fast.jumps > 0)
    assert fast.folds[:, 4].sum() == fast.periods + fast.lookups
    assert np.all(
        fast.folds[fast.folds[:, 5] > 0][:, 3:5].prod(axis=1)
        == np.diff(fast.folds[fast.folds[:, 5] > 0][:, 1:3], axis=1)[:, 0]
    )
    assert np.all(np.diff(fast.folds[:, 1:3].ravel()) >= 0)


CYCLE_COLUMNS = [1, 2, 3, 4, 5, 6, 7, 9]
"""Columns of a row of a trace that are cycles."""


def expanded(run):
    """Every execution of a folded trace, each jump replaced by what it repeats."""
    trace, folds = run.trace, run.folds.tolist()

    def between(row, row_end, fold, fold_end):
        parts = []
        for number in range(fold, fold_end):
            later, rows, rows_after, inner, inner_after, before = folds[number][6:]
            parts.append(trace[row:before])
            row, repeated = before, between(rows, rows_after, inner, inner_after)
            for time in range(1, folds[number][4] + 1):
                copy = repeated.copy()
                copy[:, CYCLE_COLUMNS] += time * later
                parts.append(copy)
        return np.concatenate([*parts, trace[row:row_end]])

    return between(0, len(trace), 0, len(folds))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(iterations=16), chips())
def test_jumps_say_which_executions_they_repeat(program, chip):
    exact = run(program, chip, exact=True, trace_limit=200_000)
    fast = run(program, chip, trace_limit=200_000)
    event("periods and lookups" if fast.periods and fast.lookups else "periods" if fast.periods else "others")
    assert np.array_equal(expanded(fast), exact.trace)


PRODUCTS = ("gpt2-block-gemms", "resnet50-conv", "resnet50")
"""Library workloads without phases or layers; the first two are the only ones for a bare array."""
WIDE = ("gpt-145b", "gpt-1t")
"""GPTs like the smaller ones, there for plans over thousands of GPUs; rows of 25,600 do not fit small buffers."""
PAIRS = [
    (chip, workload)
    for chip in chip_names()
    for workload in workload_names()
    if workload not in WIDE
    if load_chip(chip).memory or (workload in PRODUCTS[:2] and load_chip(chip).tile.kind != "pim")
]
SMALL = {
    "prefill": [("layers", "5"), ("sequence", "160"), ("batch", "3")],
    "decode": [("phase", "decode"), ("layers", "5"), ("context", "500"), ("batch", "3")],
}


@pytest.mark.slow(seconds=1.4)
@pytest.mark.parametrize(("chip", "workload"), PAIRS, ids=lambda name: name)
def test_every_library_workload_on_every_library_chip(chip, workload, seed):
    """In one phase a day, by turns, and in the other one where a chip or a workload does not have it."""
    turn = (PAIRS.index((chip, workload)) + seed) % 2
    phases = list(SMALL.values())[turn:] + list(SMALL.values())[:turn]
    if workload == "vit-base":  # an image has a length of its own
        phases = [[each for each in overrides if each[0] not in ("sequence", "context")] for overrides in phases]
    if workload == "whisper-small":  # and 30 seconds of sound, of which a step attends to all
        given = {"sequence": "model.max_source_positions", "context": "context"}
        phases = [[(given.get(key, key), "300" if key == "context" else n) for key, n in each] for each in phases]
    if workload.startswith("mamba"):  # a state knows no length
        phases = [[each for each in overrides if each[0] != "context"] for overrides in phases]
    chip = load_chip(chip)
    roomy = {name: memory.model_copy(update={"capacity": 2**40}) for name, memory in chip.memory.items()}
    chip = chip.model_copy(update={"memory": roomy})
    refused = []
    for overrides in [[]] if workload in PRODUCTS else phases:
        try:
            program = map_workload(chip, load_workload(workload, overrides)).program
        except LoomError as error:  # an encoder does not decode; buffers too small for one of the operators
            refused.append(str(error))
            continue
        exact, fast = run(program, chip, exact=True), run(program, chip)
        assert same(fast, exact) == []
        # refreshes of a channel that the program drives are a part of its state, and hardly ever recur with the rest
        driven = any(i.opcode == Opcode.PIM_WRITE for i in program.instructions)
        assert fast.events_skipped > 0 or workload in PRODUCTS or driven
        break
    expected = ("does not decode", "enlarge them", "operands are not among")
    assert [r for r in refused if not any(reason in r for reason in expected)] == []
    assert len(refused) < 2


@pytest.mark.slow(seconds=1)
def test_a_loop_that_never_recurs_keeps_few_snapshots(monkeypatch):
    """A semaphore that only grows: the queues never look the same again, so nothing is worth a snapshot."""
    post = Instruction(opcode=Opcode.VECTOR, m=1, n=1, post=1)
    loop, end = Instruction(opcode=Opcode.LOOP, m=3000), Instruction(opcode=Opcode.NEXT)
    program = Program((loop, post, end, Instruction(opcode=Opcode.END)), (Semaphore("full"),))
    capture = snapshot.capture.py_func
    chip, taken = load_chip("npu-edge-int8"), []

    def counted(*arguments):
        taken.append(1)
        return capture(*arguments)

    for module in (kernel, recurrence, snapshot):
        for name, function in list(vars(module).items()):
            if hasattr(function, "py_func"):
                monkeypatch.setattr(module, name, function.py_func)
    monkeypatch.setattr(recurrence, "capture", counted)
    plain = kernel.run
    # kernels take arguments that are known as wholes; what they are written as takes what those hold
    monkeypatch.setattr(kernel, "run", lambda *given: plain(*(getattr(each, "value", each) for each in given)))
    assert same(run(program, chip), run(program, chip, exact=True)) == []
    assert len(taken) < 80

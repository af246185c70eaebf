import os
import pickle
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, event, find, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.isa import Instruction, Opcode, Program, Semaphore, Unit
from siliconloom.sim.chip.engine import Stopwatch, run
from siliconloom.sim.chip.tables import Timer
from siliconloom.sim.timing.units import fetch_cycles
from tests.in_turn import examples
from tests.sim.programs import chips, pipelines, programs
from tests.sim.reference import Deadlock, Reference

END = Instruction(opcode=Opcode.END)


@examples(60, 400, seconds=10)
def test_the_kernel_agrees_with_a_simulator_that_steps_every_cycle(examples):
    patient = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    settings(max_examples=examples, deadline=None, suppress_health_check=patient)(stepped)()


@given(programs(), chips())
def stepped(program, chip):
    try:
        expected = Reference(program, chip)
    except Deadlock:
        event("deadlock")
        with pytest.raises(LoomError, match="deadlock: "):
            run(program, chip)
        return
    outcome = run(program, chip, exact=True, trace_limit=100_000)
    event(f"{min(len(expected.log) // 10, 5)}0 executions")
    assert outcome.cycles == expected.cycles
    ours = sorted((number, consumed, done) for number, _, consumed, done, *_ in outcome.trace.tolist())
    assert ours == sorted(expected.log)


@pytest.mark.slow(seconds=1)
@settings(max_examples=50, deadline=None)
@given(programs(), chips())
def test_every_cycle_of_every_unit_is_accounted_for(program, chip):
    try:
        outcome = run(program, chip)
    except LoomError:
        assume(False)
    assert np.all(outcome.busy + outcome.stalls.sum(axis=1) == outcome.cycles)
    assert np.all(outcome.stalls >= 0)
    assert np.all(outcome.busy >= 0)
    assert outcome.exclusive.sum() == outcome.cycles
    assert np.all(outcome.operator_busy.sum(axis=0)[1:] == outcome.busy[1:])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), chips(), st.data())
def test_what_is_counted_is_that_of_every_execution(program, chip, data):
    """Also where a product puts sums in their place in some iterations of its loops, and adds in the others."""
    code, depth = [], 0
    for i in program.instructions:
        depth += (i.opcode == Opcode.LOOP) - (i.opcode == Opcode.NEXT)
        inside = data.draw(st.integers(0, 2**depth - 1)) if i.opcode == Opcode.MATMUL and not i.accumulate else 0
        code.append(replace(i, overwrite=inside, wait=0, first_wait=0, release=0, post=0, last_post=0))  # nobody waits
    program = Program(tuple(code), program.semaphores, program.operators, program.tiles)
    outcome = run(program, chip)
    expected = np.zeros_like(outcome.counters)
    of_one: dict[object, np.ndarray] = {}
    for number, i, indices, _ in program.executions():
        adds = int(i.adds(indices)) if i.opcode == Opcode.MATMUL else i.accumulate
        if (number, adds) not in of_one:
            alone = Program(
                (replace(i, overwrite=0, first=0, last=0, accumulate=adds), END), program.semaphores, program.operators
            )
            of_one[number, adds] = Timer(chip).counters(alone)[0] * program.tiles_of(number, 1)
        expected[i.operator] += of_one[number, adds]
    assert outcome.counters.tolist() == expected.tolist()


UNCOMPILED = """
import pickle, sys
from msgspec.structs import asdict
from siliconloom.sim.chip.engine import Stopwatch, run
from siliconloom.sim.chip.tables import Timer
for program, chip in pickle.load(sys.stdin.buffer):
    for exact in (True, False):
        outcome = run(program, chip, exact=exact, trace_limit=50)
        values = {k: v for k, v in asdict(outcome).items() if k != "wall_s"}
        print({k: v.tolist() if hasattr(v, "tolist") else v for k, v in values.items()})
"""


@pytest.mark.slow(seconds=1)
def test_the_kernel_means_the_same_uncompiled():
    options = settings(max_examples=200, deadline=None, database=None, phases=[Phase.generate])
    cases = [
        find(
            st.tuples(pipelines(), chips()),
            lambda c: len(c[0].instructions) > 12,
            random=Random(seed),
            settings=options,
        )
        for seed in range(4)
    ]
    printed = [
        subprocess.run(
            [sys.executable, "-c", UNCOMPILED],
            input=pickle.dumps(cases),
            capture_output=True,
            check=True,
            env={**os.environ, "NUMBA_DISABLE_JIT": off},
        ).stdout
        for off in ("0", "1")
    ]
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 8


def test_a_deadlock_names_units_instructions_and_semaphores():
    program = Program(
        (
            Instruction(opcode=Opcode.LOAD, m=1, n=64, wait=1),
            Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, wait=2),
            END,
        ),
        (Semaphore("free"), Semaphore("full")),
    )
    with pytest.raises(LoomError) as caught:
        run(program, load_chip("npu-edge-int8"))
    assert str(caught.value) == (
        "deadlock: load at instruction 0 waits for free; matmul at instruction 1 waits for full"
    )


def test_a_semaphore_that_overflows_is_an_error():
    post = Instruction(opcode=Opcode.LOAD, m=1, n=1, post=1)
    program = Program(
        (Instruction(opcode=Opcode.LOOP, m=5000), post, Instruction(opcode=Opcode.NEXT), END), (Semaphore("full"),)
    )
    with pytest.raises(LoomError, match=r"overflows at instruction 1 .*load"):
        run(program, load_chip("npu-edge-int8"))


def test_a_time_beyond_the_counter_is_an_error():
    huge = Instruction(opcode=Opcode.MATMUL, m=2**24 - 1, n=2**24 - 1, k=2**24 - 1)
    deep = (huge,)
    for _ in range(3):
        deep = (Instruction(opcode=Opcode.LOOP, m=2**20), *deep, Instruction(opcode=Opcode.NEXT))
    with pytest.raises(LoomError, match="does not fit 62 bits"):
        run(Program((*deep, END)), load_chip("systolic-ws-8", [("tile.array.rows", "1"), ("tile.array.cols", "1")]))


def test_an_empty_program_takes_the_fetch_of_its_end():
    chip = load_chip("npu-edge-int8")
    outcome = run(Program((END,)), chip)
    first, interval = fetch_cycles(chip)
    assert outcome.cycles == first + interval == 100 + 256 // 64 + 2


def test_unsupported_units_say_so():
    send = Instruction(opcode=Opcode.SEND, m=1, n=1)
    with pytest.raises(LoomError, match="not supported: send instructions"):
        run(Program((send, END)), load_chip("npu-edge-int8"))
    load = Instruction(opcode=Opcode.LOAD, m=1, n=1)
    with pytest.raises(LoomError, match="not supported: load instructions on a bare"):
        run(Program((load, END)), load_chip("systolic-ws-8"))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_a_trace_is_bounded_and_does_not_change_the_outcome(m, n, k):
    program = Program(
        (
            Instruction(opcode=Opcode.LOOP, m=10),
            Instruction(opcode=Opcode.MATMUL, m=m, n=n, k=k),
            Instruction(opcode=Opcode.NEXT),
            END,
        )
    )
    chip = load_chip("npu-edge-int8")
    traced, plain = run(program, chip, trace_limit=3), run(program, chip)
    assert traced.trace.shape == (3, 10)
    assert traced.cycles == plain.cycles
    assert traced.busy[Unit.MATMUL] == plain.busy[Unit.MATMUL]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.lists(programs(), min_size=2, max_size=4), chips())
def test_a_stopwatch_forgets_one_program_before_the_next(made, chip):
    """Programs, each of them twice, on one chip: what the memory that they share held before changes no time."""
    watch = Stopwatch(chip)

    def outcome(timed, program):
        try:
            return timed(program)
        except LoomError as error:
            return str(error)

    for program in (*made, *made):
        assert outcome(watch, program) == outcome(lambda each: run(each, chip).cycles, program)

"""What the bench of a whole npu tile runs: programs on random memory, and how the simulator says each ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch import Chip
from siliconloom.arch.isa import Opcode, Program, Unit
from siliconloom.arch.memo import Memo, compiled_memo, key_of
from siliconloom.arch.processes import given_to_helper, helped
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import BUILT, VectorFunction
from siliconloom.rtl.emit import only_own_circuits
from siliconloom.rtl.npu.registers import unit_names
from siliconloom.rtl.npu.testbench import ProgramVectors
from siliconloom.sim.chip.engine import run
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram
from siliconloom.verification.chain import why_no_programs
from siliconloom.verification.coverage import Feature, choose, features
from siliconloom.verification.images import PROGRAM_WORDS, RESULTS, random_image
from siliconloom.verification.programs import random_program

TRACE = 1_000_000
CANDIDATES = 256
"""Seeds that the bench's programs are chosen from."""
TRIES = ((range(CANDIDATES), 8), (range(0), 9), (range(CANDIDATES, 6 * CANDIDATES), 9))
"""Further seeds, and programs of one bench at most: the next try where those so far lack a function."""
SEGMENTS = 4
"""Segments of a candidate at most."""
LONGEST = 3_000
"""Cycles of one program at most, unless all candidates are longer: interpreting simulators do hundreds a second."""


def bench_vectors(chip: Chip) -> list[ProgramVectors]:
    """Runs of random programs for the npu tile of ``chip`` that together use every opcode and function it has.

    Their operands lie in the same random memory, so that the bench need not write all of it anew for each. None for a
    tile that has too few banks for them (`chain.why_no_programs`).
    """
    assert isinstance(chip.tile, NpuTile)
    if why_no_programs(chip.tile):
        return []
    image = _image(chip.tile)
    if not only_own_circuits():
        return [predict(chip, each) for each in _chosen(chip, image).values()]
    answer = compiled_memo().recall(_key(chip), lambda: {"seeds": np.array([*_chosen(chip, image)], np.int64)})
    return [predict(chip, random_program(chip, int(seed), SEGMENTS, image=image)) for seed in answer["seeds"]]


@contextlib.contextmanager
def chosen_beside(chip: Chip) -> Iterator[bool]:
    """Choose what `bench_vectors` runs in a process beside this one, which takes as long as to write the modules.

    The block is told whether there is one; there is none where the choice is known, or could not be handed over.
    """
    assert isinstance(chip.tile, NpuTile)
    memo = compiled_memo()
    own = only_own_circuits() and not why_no_programs(chip.tile)
    if not own or memo.folder is None or memo.known(_key(chip)) is not None:
        yield False
        return
    code = "from siliconloom.verification.vectors import choose_for_another; choose_for_another()"
    with helped(code, (chip, memo.folder)) as beside:
        yield beside


def choose_for_another() -> None:
    """What the process of `chosen_beside` does; the one that it helps finds the answer in the memo, or what fails."""
    chip, folder = given_to_helper()
    with contextlib.suppress(Exception):
        Memo(folder).recall(_key(chip), lambda: {"seeds": np.array([*_chosen(chip, _image(chip.tile))], np.int64)})


def _key(chip: Chip) -> str:
    return key_of("programs of a bench", chip.digest)


def _image(tile: NpuTile) -> NDArray[np.uint8]:
    """The random memory in which the programs' operands lie."""
    return random_image(np.random.default_rng(0), tile.circuit_format)


def _chosen(chip: Chip, image: NDArray[np.uint8]) -> dict[int, LoadedProgram]:
    """The programs that the bench runs, by their seeds, of many that read from ``image``."""
    made: dict[int, LoadedProgram] = {}
    cycles: dict[int, int] = {}
    known: dict[int, frozenset[Feature]] = {}
    chosen: list[int] = []
    for seeds, most in TRIES:
        for seed in seeds:
            program = random_program(chip, seed, SEGMENTS, image=image)
            if len(program.program.instructions) <= PROGRAM_WORDS:
                made[seed], cycles[seed] = program, int(run(program.program, chip).cycles)
        longest = max(LONGEST, min(cycles.values()))
        short = [seed for seed in made if cycles[seed] <= longest]
        known |= {seed: features(chip, made[seed]) for seed in short if seed not in known}
        found = {seed: known[seed] for seed in short}
        chosen = list(choose(found, cycles, most))
        if functions_used([made[seed].program for seed in chosen]) >= set(BUILT):
            break
    return {seed: made[seed] for seed in chosen}


def functions_used(programs: Iterable[Program]) -> set[VectorFunction]:
    """Vector functions of some programs."""
    return {i.function for each in programs for i in each.instructions if i.opcode is Opcode.VECTOR}


def predict(chip: Chip, made: LoadedProgram) -> ProgramVectors:
    """How a run of ``made`` on ``chip`` ends: the golden model's memory, the simulator's cycles and counters.

    Memory for results begins as zeros, so that vectors hold only what matters.
    """
    program = made.program
    emptied = made.memory.copy()
    emptied[RESULTS:] = 0
    before = replace(made, memory=emptied).loaded()
    after = before.copy()
    GoldenMachine(chip, after).run(program)
    model = run(program, chip, exact=True, trace_limit=TRACE)
    ended = [program.instructions[row[0]].unit for row in model.trace.tolist()]
    counters = {}
    for unit in unit_names(chip.tile):
        number = Unit[unit.upper()]
        counters[unit] = {
            "busy": int(model.busy[number]),
            "waiting": int(model.waiting[number]),
            "completed": ended.count(number),
        }
    return ProgramVectors(
        program=program, base=made.base, before=before, after=after, cycles=int(model.cycles), counters=counters
    )


__all__ = ["bench_vectors", "chosen_beside", "predict"]

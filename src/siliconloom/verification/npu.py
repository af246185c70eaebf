"""Whole programs on the RTL of an npu tile against the simulator (cycles) and the golden model (values)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch import Chip, LoomError, NotSupported
from siliconloom.arch.budget import require_memory
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.isa import Program, Unit
from siliconloom.arch.listing import disassemble
from siliconloom.arch.memo import compiled_memo, key_of
from siliconloom.arch.pim import Command, PimTile
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.timing import PIM_REFRESH
from siliconloom.arch.verified import NpuCase, Seen, VerifiedNpu
from siliconloom.arch.word import WORD_BYTES
from siliconloom.rtl.bench.pim_rules import RuleBook
from siliconloom.rtl.bench.programs import ProgramCase, ProgramOutcome, run_programs
from siliconloom.rtl.bench.runner import Spent
from siliconloom.rtl.bench.timeline import Waves, timeline_of, told
from siliconloom.rtl.cells.sram import READ_WHILE_WRITTEN
from siliconloom.rtl.emit import Bundle, build_rtl, only_own_circuits
from siliconloom.rtl.npu.geometry import PAGE
from siliconloom.rtl.npu.registers import Cause, unit_names
from siliconloom.rtl.writing import writers
from siliconloom.sim.chip.engine import Run, duration, run
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram
from siliconloom.verification.chain import BANKS, why_no_programs
from siliconloom.verification.channel_programs import channel_program
from siliconloom.verification.directed import directed_programs
from siliconloom.verification.layers import LAYERS, channel_runs, layer_runs
from siliconloom.verification.netlist import in_cells
from siliconloom.verification.parity import Findings, Parity, ParityStream, span, verilog
from siliconloom.verification.programs import random_program
from siliconloom.verification.races import races

TRACE = 1_000_000
MOST_NAMES = 12
"""Programs that a message names."""
RULES = 5
"""Broken rules of a channel's DRAM that are told."""
STALL, STALLED = 96, 4
"""Every fourth random program runs on a memory that hesitates with this chance in 256."""
MOST_WAVES = 2_000_000
"""Cycles of a run of which waves are written."""
FAR = 0x7123_4567_0000_0000 >> 16
"""Where a memory far from address 0 begins: beyond 32 bits, at a multiple of the page of any number of ports."""
FLOAT_ELEMENT = 940_000
"""Bytes that Verilator takes for an element in floating point: of 4,096 instead of 256 it took 3.6 GB more."""
SURROUNDINGS = 8
"""Kinds of `surrounded` runs, taken in turn."""


class ProgramParity(Parity, kw_only=True):
    """What comparing one program showed."""

    program: Program
    executed: int

    def case(self) -> NpuCase:
        """Entry of the record."""
        return NpuCase(**self.common(), words=len(self.program.instructions), instructions=self.executed)


class Predicted(Struct, frozen=True):
    """A program by the simulator, every instruction by itself.

    Parameters
    ----------
    model
        The run, with its trace.
    runs
        By unit: `executions`.
    commands
        To a channel of memory that computes.
    """

    model: Run
    runs: dict[str, list[tuple[int, int, int]]]
    commands: list[tuple[int, ...]]


def predicted(program: Program, chip: Chip) -> Predicted:
    """What the simulator says of a program."""
    commands = list[tuple[int, ...]]()
    model = run(program, chip, exact=True, trace_limit=TRACE, commands=commands)
    return Predicted(model, executions(program, model, chip), commands)


def compare(
    name: str,
    chip: Chip,
    made: LoadedProgram,
    outcome: ProgramOutcome,
    stalled: bool = False,
    due: Predicted | None = None,
) -> ProgramParity:
    """Hold an outcome of the RTL against the simulator and the golden model.

    A run on a memory that hesitates (``stalled``) is compared by value alone. ``due`` is what the simulator says, where
    that is known.
    """
    due = due or predicted(made.program, chip)
    model, runs, commands = due.model, due.runs, due.commands
    parity = ProgramParity(
        name=name, stalled=stalled, program=made.program, executed=sum(len(each) for each in runs.values())
    )
    if not outcome.ended:
        parity.value_errors.append("the tile did not end its program")
    if outcome.cause != Cause.NONE:
        parity.value_errors.append(f"the tile stopped with '{outcome.cause.text}' at instruction {outcome.instruction}")
    expected = made.loaded()
    golden = GoldenMachine(chip, expected, made.channel)
    golden.run(made.program)
    parity.same_bytes("memory", outcome.memory, expected)
    if golden.channel is not None:
        parity.same_bytes("channel", outcome.channel, golden.channel.content(len(outcome.channel)))
    parity.cycles(outcome.cycles, model.cycles)
    if stalled:
        return parity
    for unit in unit_names(chip.tile):
        number = Unit[unit.upper()]
        for counter, value in (("busy", model.busy[number]), ("waiting", model.waiting[number])):
            parity.count(f"{counter} cycles of {unit}", outcome.counters[unit][counter], int(value))
    lines = disassemble(made.program).splitlines()
    parity.hold(
        [
            execution_stream(unit, lines, own, outcome.issued[unit], outcome.completed[unit])
            for unit, own in runs.items()
        ]
        + ([] if golden.channel is None else [command_stream(commands, outcome.commands)])
    )
    if golden.channel is not None:
        parity.count_errors += broken_rules(golden.channel.tile, outcome.commands)
    return parity


def command_stream(model: Sequence[tuple[int, ...]], rtl: Sequence[tuple[int, ...]]) -> ParityStream[Any]:
    """Commands to the channel of memory that computes; refreshes behind the last instruction's are left out."""
    wanted = [(cycle, code, place, max(row, 0), column) for cycle, code, place, row, column in model]
    found = list(rtl)
    while len(found) > len(wanted) and found[-1][1] == Command.REF:
        found.pop()
    return ParityStream("command", wanted, found, _command)


def _command(logged: tuple[int, ...]) -> Seen:
    cycle, code, place, row, column = logged
    return Seen(cycle=cycle, what=f"{Command(code).name} place {place} row {row} column {column}")


def broken_rules(pim: PimTile, commands: Sequence[tuple[int, ...]]) -> list[str]:
    """What of JEDEC's rules the commands of a run break, the first few of it."""
    rules = RuleBook(pim)
    for cycle, code, place, row, column in commands:
        rules.see(cycle - PIM_REFRESH, code, place, row, column)
    return [f"DRAM array: {each}" for each in rules.broken[:RULES]]


def executions(program: Program, model: Run, chip: Chip) -> dict[str, list[tuple[int, int, int]]]:
    """Of each unit, in order: instruction, cycle of leaving the queue, cycle from which it is complete."""
    rows = model.trace.tolist()
    of_unit = {unit: Unit[unit.upper()] for unit in unit_names(chip.tile)}
    return {
        unit: [(r[0], r[4], r[3]) for r in rows if program.instructions[r[0]].unit == number]
        for unit, number in of_unit.items()
    }


def execution_stream(
    unit: str,
    lines: Sequence[str],
    executed: Sequence[tuple[int, int, int]],
    issued: Sequence[int],
    completed: Sequence[int],
    zero: int = 0,
) -> ParityStream[tuple[int | None, int | None]]:
    """Start and end of every execution of a unit, the model's (`executions`) from cycle ``zero`` on.

    ``lines`` are the instructions as text. An execution that the RTL began
    and did not end has no end.
    """

    def instruction(number: int) -> str:
        return lines[executed[number][0]].strip() if number < len(executed) else "that the model does not execute"

    return ParityStream(
        f"{unit} execution",
        [(begin + zero, end + zero) for _, begin, end in executed],
        list(zip_longest(issued, completed)),
        span,
        times=2,
        instruction=instruction,
    )


def bundle_of(chip: Chip) -> Bundle:
    """The Verilog of a chip, generated once by each version of what writes it.

    With units or functions from elsewhere it is generated each time.
    """
    if not only_own_circuits():
        return build_rtl(chip)

    def generated() -> dict[str, str]:
        made = build_rtl(chip, remembered=True)
        return {"bundle": json.dumps([made.files, made.top, made.sidecar])}

    key = key_of("verilog", chip.digest, *writers())
    return Bundle(*json.loads(str(compiled_memo().recall(key, generated, large=True)["bundle"])))


def _refuse_large(chip: Chip) -> None:
    """Arrays whose model a simulator's compiler holds no memory for."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    array, dtype = tile.array, tile.circuit_format
    if not dtype.is_integer:
        require_memory(
            f"RTL of {chip.name}: a simulator's model of {array.rows} x {array.cols} elements in {dtype.value}",
            FLOAT_ELEMENT * array.rows * array.cols,
            "take a smaller array (--set tile.array.rows=16 --set tile.array.cols=16 --set tile.vector.lanes=16)",
        )


def _require_program(name: str, names: Sequence[str]) -> None:
    """Refuse the name of a program that is none of these, with the nearest."""
    if name not in names:
        near = nearest_name(name, names)
        hint = f"; did you mean '{near}'?" if near else ""
        some = "; ".join(names[:MOST_NAMES]) + ("; ..." if len(names) > MOST_NAMES else "")
        rule = (
            f"--only: must be a program of the table (got '{name}'){hint}; --programs and --seed make other random ones"
        )
        raise LoomError(f"{rule}; there are {some}")


def check_programs(
    chip: Chip,
    programs: Sequence[tuple[str, LoadedProgram]],
    *,
    simulator: str = "verilator",
    stall: Sequence[int] = (),
    options: Sequence[Mapping[str, Any]] = (),
    spent: Spent | None = None,
    liberty: Path | None = None,
    waves: Path | None = None,
) -> list[ProgramParity]:
    """Build the tile of ``chip`` and run named programs on it.

    Parameters
    ----------
    chip
        A chip whose npu tile has RTL.
    programs
        Names and programs; each runs from reset.
    simulator
        ``icarus`` or ``verilator``.
    stall
        For each program, how much its memory hesitates (see `ProgramCase`); none where left out.
    options
        For each program, what else its `ProgramCase` has, as `surrounded` gives it.
    spent
        The time that building and running took is added to it.
    liberty
        The tile is a netlist of this library's cells (`verification.netlist`).
    waves
        All signals go to this file, with the simulator's timeline of each program among them (`rtl.bench.timeline`),
        and views of it for viewers beside it; whatever comes of the run.

    Raises
    ------
    LoomError
        When the simulator is missing or the description has no RTL.
    TooLarge
        When its model needs more memory than this machine has.
    """
    _refuse_large(chip)
    bundle = in_cells(bundle_of(chip), liberty, spent)
    cases = [ProgramCase(made.program, made.memory, made.base, channel=made.channel) for _, made in programs]
    for number, each in enumerate(stall):
        cases[number] = replace(cases[number], stall=each)
    for number, more in enumerate(options):
        cases[number] = replace(cases[number], **more)
    cycles = sum(duration(made.program, chip) for _, made in programs)
    if spent is not None:
        spent.predicted = cycles
    if waves is not None:
        _refuse_long(waves, cycles)
    due = [None if waves is None else predicted(made.program, chip) for _, made in programs]
    shown = None if waves is None else _shown(programs, due, waves.suffix)
    with verilog(bundle) as (sources, folder):
        try:
            outcomes = run_programs(
                chip,
                sources,
                bundle.top,
                cases,
                folder=folder,
                simulator=simulator,
                cycles=cycles,
                spent=spent,
                waves=shown,
            )
        except LoomError as error:
            if waves is not None and shown is not None:
                with suppress(LoomError):  # what went wrong before is what counts
                    shown.keep(folder, waves, f"{bundle.top}_bench", bundle.ports)
            if READ_WHILE_WRITTEN in str(error):
                raise LoomError(f"{error}; {_racing(chip, programs)}") from error
            raise
        if waves is not None and shown is not None:
            shown.keep(folder, waves, f"{bundle.top}_bench", bundle.ports)
    return [
        compare(name, chip, made, outcome, case.stall > 0 or case.order > 0, known)
        for (name, made), outcome, case, known in zip(programs, outcomes, cases, due, strict=True)
    ]


def _refuse_long(waves: Path, cycles: int) -> None:
    """Runs of so many cycles that their waves are no file that anybody opens."""
    if cycles > MOST_WAVES:
        raise LoomError(
            f"--waves {waves}: the run takes {cycles:,} cycles, and waves are written of up to {MOST_WAVES:,}, "
            "which are gigabytes already; take one program (--only), or less of a workload (workload.layers)"
        )


def _shown(programs: Sequence[tuple[str, LoadedProgram]], due: Sequence[Predicted | None], suffix: str) -> Waves:
    """The waves of these programs beside what the simulator says of each."""
    timelines = [timeline_of(made.program, each.runs) for (_, made), each in zip(programs, due, strict=True) if each]
    return Waves(f"waves{suffix}", [name for name, _ in programs], timelines)


def _racing(chip: Chip, programs: Sequence[tuple[str, LoadedProgram]]) -> str:
    """Which instructions of which program may touch one word at a time, as far as semaphores say."""
    for name, made in programs:
        if race := next(races(made.program, chip), None):
            return f"{name}: {race.text(made.program)}"
    return "no two instructions of the programs may touch one word at the same time: this is a bug of the circuit"


def surrounded(made: LoadedProgram, number: int, *, seed: int = 0) -> tuple[LoadedProgram, dict[str, Any]]:
    """``made`` in the surroundings that have their turn: where it stands, and how its `ProgramCase` is otherwise.

    Of every four runs one is on a memory that hesitates, and half of these take writes in another order; the others
    are exact to the cycle. Every second memory begins beyond 32 bits, and every second program has words with anything
    in the bits that no tile reads; hosts have habits, but for the first.
    """
    turn = number % SURROUNDINGS
    if not turn:
        return made, {}
    hesitates = turn % STALLED == STALLED - 1
    room = len(made.memory) // WORD_BYTES - made.base // WORD_BYTES - len(made.program.instructions)
    # every second program ends a word after a page
    offset = (1 - len(made.program.instructions)) % (PAGE // WORD_BYTES) if turn % 2 else 7 * turn
    return replace(made, base=made.base + max(min(room, offset), 0) * WORD_BYTES), {
        "stall": STALL if hesitates else 0,
        "order": 1 + number // SURROUNDINGS % 2 if turn == SURROUNDINGS - 1 else 0,
        "origin": FAR if turn % 2 else 0,
        "host": 1 + 1000 * seed + number,
        "reset_at": 40 + 13 * turn if turn in (2, 5) else 0,
        "scribbled": 1 + 1000 * seed + number if turn % 2 else 0,
    }


def verify_programs(
    chip: Chip,
    *,
    seed: int,
    simulator: str,
    programs: int,
    spent: Spent,
    layers: bool = True,
    liberty: Path | None = None,
    waves: Path | None = None,
    only: str | None = None,
) -> Findings:
    """Random programs on the tile of ``chip``, each in other surroundings (`surrounded`).

    Then those that reach what random ones seldom do (`verification.directed`), and transformer layers; of all these
    ``only`` the one of this name, where it is given.
    """
    assert isinstance(chip.tile, NpuTile)
    if reason := why_no_programs(chip.tile):
        raise NotSupported(f"programs on {chip.name}: {reason}; --set tile.scratchpad.banks={BANKS}")
    around = [surrounded(random_program(chip, seed + n), n, seed=seed) for n in range(programs)]
    made = [(f"random {seed + number}", each) for number, (each, _) in enumerate(around)]
    options = [more for _, more in around]
    made += directed_programs(chip)
    notes = []
    if chip.tile.pim is not None:
        made += [(f"channel {seed + number}", channel_program(chip, seed + number)) for number in range(programs)]
    if layers:
        try:
            made += [(r.name, r.made) for spec in LAYERS for r in layer_runs(chip, spec, seed=seed)]
        except LoomError as error:
            notes.append(f"no transformer layers: {error}")
    if layers and chip.tile.pim is not None:
        try:
            made += [channel_runs(chip, spec, seed=seed) for spec in LAYERS]
        except LoomError as error:
            notes.append(f"no attention in the channel: {error}")
    if only is not None:
        _require_program(only, [name for name, _ in made])
        at = [name for name, _ in made].index(only)
        made, options = [made[at]], options[at : at + 1]
    found = check_programs(chip, made, simulator=simulator, options=options, spent=spent, liberty=liberty, waves=waves)
    notes += [] if waves is None else [told(waves)]
    return Findings(VerifiedNpu, "the whole tile, by programs", [parity.case() for parity in found], notes=notes)

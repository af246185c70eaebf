"""What happened when, for whoever draws it: spans on tracks, and instructions in their stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

EVENT_BYTES = 800
"""Memory of a span on its way to a file: a line of some 200 characters, joined and encoded."""


class Span(Struct, frozen=True):
    """Something that goes on for a time.

    Parameters
    ----------
    track
        Number of the track it is on.
    name, category
        What it is, and of which kind.
    start, end
        In ticks of the timeline.
    details
        What else is known of it.
    """

    track: int
    name: str
    category: str
    start: int
    end: int
    details: Mapping[str, Any] | None = None


class Timeline(Struct, frozen=True):
    """Spans on tracks.

    Parameters
    ----------
    title
        What all of it is.
    tick
        Seconds of a tick.
    tracks
        Name of each track by its number.
    spans
        In order of their tracks' own times; they may be made as they are read, once.
    facts
        What a reader should know of the whole.
    held
        Of tracks whose memory is known over time: bytes held all the time, and ticks with bytes held besides from then
        on.
    finer
        Tracks that say what is in another one's spans: whoever has no room for all leaves these out.
    """

    title: str
    tick: float
    tracks: Mapping[int, str]
    spans: Iterable[Span]
    facts: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[int, tuple[float, tuple[tuple[int, float], ...]]] = field(default_factory=dict)
    finer: frozenset[int] = frozenset()


class TimedInstruction(Struct, frozen=True):
    """What every execution of one instruction has in common.

    Parameters
    ----------
    operator, unit
        Numbers in a `FoldedRun`.
    name
        What it does.
    busy
        Cycles of its unit in which it works.
    moved
        Bytes that it moves to or from main memory.
    """

    operator: int
    unit: int
    name: str
    busy: int
    moved: int


class FoldedRun(Struct, frozen=True):
    """Every execution of a whole run, what repeats written once.

    Parameters
    ----------
    cycles
        Of the run.
    clock
        Cycles a second.
    units, operators, causes
        Names by number; a cause is what a unit waits for.
    holder
        Of each unit the number of the cause when its instruction is there and may start, and it still waits.
    within
        Of each unit the number of the cause of cycles between first and last beat in which it does not work.
    instructions
        By number.
    rows
        Executions in the order in which they were run, seven numbers each: instruction; cycle from which its unit
        waited for it, until it was there, until its last semaphore was posted; cause of the latter; begin; end.
    jumps
        What was not run because it repeats, seven numbers each: rows before it; by how many cycles it is later each
        time; how often; first and last-but-one row that it repeats, first and last-but-one earlier jump.
    left_out
        Executions that were run and are not among the rows.
    """

    cycles: int
    clock: int
    units: tuple[str, ...]
    operators: tuple[str, ...]
    causes: tuple[str, ...]
    holder: tuple[int, ...]
    within: tuple[int, ...]
    instructions: tuple[TimedInstruction, ...]
    rows: list[list[int]]
    jumps: list[list[int]]
    left_out: int


class StagedInstruction(Struct, frozen=True):
    """One execution of an instruction, by the cycles at which it enters its stages.

    Parameters
    ----------
    number
        Of the instruction in its program.
    unit
        Number of the unit that executes it.
    text, operator
        The instruction as listings have it, and the operator that it works for.
    issued, queued
        When the sequencer takes it up, and when it is in its unit's queue.
    started, begun
        When it leaves the queue, and when its first operand moves.
    read, done
        When its operands have been read, and when its results are there.
    """

    number: int
    unit: int
    text: str
    operator: str
    issued: int
    queued: int
    started: int
    begun: int
    read: int
    done: int


class InstructionStream(Struct, frozen=True):
    """Instructions in the order in which they were issued.

    Parameters
    ----------
    units
        Name of each unit by its number.
    """

    title: str
    units: Mapping[int, str]
    instructions: tuple[StagedInstruction, ...]

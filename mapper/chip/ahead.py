"""Weights that are loaded before what an earlier task's results are waited for.

A tile's load engine takes its queue in order. Weights depend on nothing; behind a load that waits for results they
wait with it, and the memory rests, though there is a free slot for them. So the first tile of a product's weights may
be loaded before such a load: of its own task, or of one that comes earlier in its block. Nothing else of a program
changes: each ring is filled in the same order, and what a slot had before has been read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Instruction, Opcode, Unit
from siliconloom.mapper.chip.builder import ProgramBuilder
from siliconloom.mapper.chip.rings import SLOTS, Ring


class Ahead(Struct, frozen=True):
    """How far the first tile in each ring of weights is loaded ahead: before how many loads that wait for results.

    1 is before that of its own task, 2 before that of the task before, and so on; 0 where its turn is.
    """

    weights: int = 0
    values: int = 0

    def __bool__(self) -> bool:
        return self.weights > 0 or self.values > 0

    def within(self, tasks: int) -> Ahead:
        """The same of a task of whose block so many are there, itself the last: what reaches further has its turn."""
        return Ahead(*(reach if reach <= tasks else 0 for reach in (self.weights, self.values)))


RINGS = ("weights", "values")
"""Those that weights are loaded into."""
IN_TURN = Ahead()
"""Every load in its turn."""


class NotAhead(LoomError):
    """Weights cannot be loaded so early: no slot is free for them, or nothing waits there.

    ``operator`` and ``ring`` say which, ``repetition`` where its part begins; ``ends`` where that is so before every
    earlier task, too.
    """

    repetition = 0

    def __init__(self, names: Sequence[str], ring: str, reason: str, *, ends: bool = True) -> None:
        super().__init__(f"weights of {names[-1]} cannot be loaded before {names[0]} waits for results: {reason}")
        self.operator, self.ring, self.ends = names[-1], ring, ends


Line = tuple[dict[str, Any] | Instruction, int | None]
"""An instruction as `ProgramBuilder` has it, and which tiles execute it."""


def go_ahead(
    builder: ProgramBuilder,
    begins: Sequence[int],
    names: Sequence[str],
    wanted: Sequence[Ahead],
    rings: Mapping[str, Ring],
    stored: int,
    anew: Sequence[bool] = (),
) -> None:
    """Move loads of tasks in a row, the last that the builder has, to where they are wanted.

    Parameters
    ----------
    builder
        With the program so far.
    begins
        Number of the first instruction of each task, and the end.
    names, wanted
        Of the tasks, one behind the other in a block.
    rings
        Of weights, by their name in `Ahead`.
    stored
        Semaphore that says that earlier results are in memory.
    anew
        Tasks before which the buffers are divided anew: nothing of theirs is loaded before that.

    Raises
    ------
    NotAhead
        When the ring has no free slot there, nothing waits, or the buffers are divided otherwise there.
    """
    if not any(wanted):
        return
    lines: list[Line] = list(zip(builder.drafts[begins[0] :], builder.working[begins[0] :], strict=True))
    stretches = [lines[first - begins[0] : end - begins[0]] for first, end in pairwise(begins)]
    for number, ahead in enumerate(wanted):
        for key, reach in asdict(ahead).items():
            if reach:
                few = slice(number + 1 - reach, number + 1)
                if key not in rings:
                    raise NotAhead(names[few], key, f"there is no ring of {key}")
                if any(anew[few]):
                    raise NotAhead(names[few], key, "the buffers are divided otherwise there")
                _move(stretches[few], names[few], key, rings[key], 1 << stored)
    moved = [line for stretch in stretches for line in stretch]
    builder.drafts[begins[0] :] = [draft for draft, _ in moved]
    builder.working[begins[0] :] = [tiles for _, tiles in moved]
    builder.added = [added for added in builder.added if added[0] < begins[0]]


def _move(stretches: Sequence[list[Line]], names: Sequence[str], key: str, ring: Ring, stored: int) -> None:
    """Move the last task's first load into the ring before the first task's first load that waits."""
    own, refused = stretches[-1], partial(NotAhead, names, key)
    first, end = _filling(own, ring)
    if not end:
        raise refused(f"the first that the ring {ring.name} is filled with is in a loop, or there is none")
    place = _waiting(stretches[0], stored)
    if place is None or (len(stretches) == 1 and place > first):
        raise refused("no load of it waits before them", ends=False)
    between = [line for stretch in stretches[:-1] for line in stretch][place:]
    between += own[place if len(stretches) == 1 else 0 : first]
    held = 0
    for times, (draft, _) in _counted(between):
        if _fills(draft, ring):
            raise refused(f"other loads fill the ring {ring.name} in between")
        held += times if _field(draft, "release") & ring.free_bit else 0
    if held >= SLOTS:
        raise refused(f"the {SLOTS} slots of the ring {ring.name} are taken there")
    moved = own[first:end]
    del own[first:end]
    stretches[0][place:place] = moved


def _filling(stretch: Sequence[Line], ring: Ring) -> tuple[int, int]:
    """Where the loads begin and end that a stretch first fills a ring with; zeros where they are in a loop."""
    depth, first = 0, None
    for place, (draft, _) in enumerate(stretch):
        opcode = _field(draft, "opcode")
        depth += (opcode == Opcode.LOOP) - (opcode == Opcode.NEXT)
        if _fills(draft, ring):
            if depth > 1 or (depth and not _field(draft, "first_wait") & ring.free_bit):
                break
            first = place - depth  # the loop over its chunks is its own
        if first is not None:
            if opcode not in (Opcode.LOAD, Opcode.LOOP, Opcode.NEXT):
                break
            if (_field(draft, "post") | _field(draft, "last_post")) & ring.full_bit:
                return first, place + 1 + depth
    return 0, 0


def _fills(draft: dict[str, Any] | Instruction, ring: Ring) -> bool:
    """Whether it is the first load, or the first chunk of it, into a slot of a ring."""
    waits = _field(draft, "wait") | _field(draft, "first_wait")
    return bool(waits & ring.free_bit) and _field(draft, "opcode") == Opcode.LOAD


def _waiting(stretch: Sequence[Line], stored: int) -> int | None:
    """Where the first load that waits for earlier results is, or the loops begin that it is in."""
    depth, begin = 0, 0
    for place, (draft, _) in enumerate(stretch):
        opcode = _field(draft, "opcode")
        if depth == 0:
            begin = place
        depth += (opcode == Opcode.LOOP) - (opcode == Opcode.NEXT)
        loads = opcode == Opcode.LOAD or _field(draft, "unit") == Unit.LOAD
        if loads and (_field(draft, "wait") | _field(draft, "first_wait")) & stored:
            return begin
    return None


def _counted(lines: Sequence[Line]) -> Iterator[tuple[int, Line]]:
    """Instructions with how often each is executed."""
    counts = [1]
    for line in lines:
        opcode = _field(line[0], "opcode")
        if opcode == Opcode.LOOP:
            counts.append(counts[-1] * _field(line[0], "m"))
        yield counts[-1], line
        if opcode == Opcode.NEXT:
            counts.pop()


def _field(draft: dict[str, Any] | Instruction, name: str) -> Any:
    return draft.get(name, 0) if isinstance(draft, dict) else getattr(draft, name)


__all__ = ["IN_TURN", "RINGS", "Ahead", "NotAhead", "go_ahead"]

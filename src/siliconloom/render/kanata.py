"""Instructions as a log of Kanata, version 4, which Konata shows as a pipeline.

The format is that of ``docs/kanata-log-format.md`` in github.com/shioyadan/Konata: a command a line, its columns
separated by tabs, times only ever going on.
"""

from __future__ import annotations

from collections.abc import Iterator

from siliconloom.arch.errors import LoomError
from siliconloom.arch.timeline import InstructionStream, StagedInstruction

SUFFIX = ".kanata"
"""Of files in this format."""
STAGES = ("F", "Q", "S", "X", "C")
"""Stages by name: the sequencer takes it up, it waits in its queue, it starts, it reads its operands, it completes."""
LANE = 0
RETIRED = 0


def is_kanata(file: str) -> bool:
    """Whether a file's name asks for this format."""
    return file.lower().endswith(SUFFIX)


def refuse_kanata(file: str) -> None:
    """Raise `LoomError` where a file of this format is asked of what has no instructions."""
    if is_kanata(file):
        raise LoomError(
            f"--trace {file}: Konata shows the instructions of one chip, and this run has none; write a .json"
        )


def kanata_text(stream: InstructionStream) -> str:
    """The log of a stream of instructions: stages in lane 0, a thread for each unit.

    A stage that takes no cycle is left out. The identifier in the simulator is the instruction's number in its program,
    retirement is in order of completion.
    """
    order = sorted(range(len(stream.instructions)), key=lambda n: (stream.instructions[n].done, n))
    retired = {number: place for place, number in enumerate(order)}
    events: list[tuple[int, int, int, str]] = []
    for number, each in enumerate(stream.instructions):
        at = (each.issued, 1, number)
        unit = stream.units.get(each.unit, f"unit {each.unit}")
        said = (
            f"{each.operator}; queued at {each.queued}, started at {each.started}, operands read at {each.read}, done"
        )
        lines = [
            f"I\t{number}\t{each.number}\t{each.unit}",
            f"L\t{number}\t0\t{_plain(f'{each.number}: {unit}: {each.text}')}",
            f"L\t{number}\t1\t{_plain(f'{said} at {each.done}')}",
        ]
        events.append((*at, "\n".join(lines)))
        for name, begin, end in stages(each):
            events.append((begin, 2, number, f"S\t{number}\t{LANE}\t{name}"))
            events.append((end, 0, number, f"E\t{number}\t{LANE}\t{name}"))
        events.append((each.done, 3, number, f"R\t{number}\t{retired[number]}\t{RETIRED}"))
    events.sort()
    return "\n".join(_timed(events)) + "\n"


def stages(each: StagedInstruction) -> Iterator[tuple[str, int, int]]:
    """Name, first cycle and first cycle behind of the stages that take any."""
    times = (each.issued, each.queued, each.started, each.begun, each.read, each.done)
    for name, begin, end in zip(STAGES, times, times[1:], strict=False):
        if end > begin:
            yield name, begin, end


def _timed(events: list[tuple[int, int, int, str]]) -> Iterator[str]:
    yield "Kanata\t0004"
    now = events[0][0] if events else 0
    yield f"C=\t{now}"
    for cycle, _, _, line in events:
        if cycle > now:
            yield f"C\t{cycle - now}"
            now = cycle
        yield line


def _plain(text: str) -> str:
    """Text of one column: what would end it is a space."""
    return " ".join(text.split())

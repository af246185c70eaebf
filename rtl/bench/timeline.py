"""The model's timeline of a program beside the RTL's, as signals of a bench, and views of both for wave viewers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from siliconloom.arch.files import write_file
from siliconloom.arch.isa import Program
from siliconloom.arch.listing import title

TEXT_BYTES = 40
"""Characters by which a viewer names an instruction."""
VIEWS = {".gtkw": ("GTKWave", ""), ".sucl": ("Surfer", "-c ")}
"""Suffixes of the files that show waves, and the viewer of each with its flag for them."""
CYCLE_PS = 10_000
"""Of the benches' clock."""
FRAMES = 5
"""Frames of GTKWave in a window of that width; its zoom is the binary logarithm of a frame's time."""
WINDOW = ("[size] 1400 900", "[sst_width] 50", "[signals_width] 220", "[sst_expanded] 0")
"""Of GTKWave: the window, its column of scopes and that of names."""


def told(waves: Path) -> str:
    """Where the waves are, and how to look at them."""
    views = [
        f"{viewer.lower()} {flag}{shlex.quote(str(waves.with_suffix(suffix)))}"
        for suffix, (viewer, flag) in VIEWS.items()
    ]
    return f"waves of RTL and model in {waves}; to look at them: {' or '.join(views)}"


class TimelineExecution(Struct, frozen=True):
    """One execution of an instruction: its number, the cycle of leaving its queue, that from which it is complete."""

    instruction: int
    begins: int
    ends: int


class UnitTimeline(Struct, frozen=True):
    """What a unit executes in one program by the model, in order, and the instructions as text by number."""

    unit: str
    executions: tuple[TimelineExecution, ...]
    texts: dict[int, str]


Timeline = tuple[UnitTimeline, ...]
"""Of all units of a tile, in the order of their codes."""


class Waves(Struct, frozen=True):
    """What is to be written of a bench: all its signals, in a file of this name, beside the timeline of each case."""

    name: str
    programs: Sequence[str]
    timelines: Sequence[Timeline]

    def write_programs(self, folder: Path) -> None:
        """The file of the programs' names that the bench reads, for ``$readmemh``."""
        (folder / "programs.hex").write_text(_words([_characters(each).hex() for each in self.programs]), "ascii")

    def keep(self, folder: Path, path: Path, bench: str, ports: Sequence[str]) -> None:
        """Bring what a simulator wrote in ``folder`` to ``path``, if it did, and lay the views of it beside that.

        ``bench`` is the top module, ``ports`` are those of the tile in it.
        """
        written = folder / self.name
        if not written.exists():
            return
        write_file(path, written)
        shakes = [port for port in ports if port.endswith(("valid", "ready"))]
        groups = view([each.unit for each in self.timelines[0]], shakes)
        cycles = sum(max((e.ends for unit in each for e in unit.executions), default=0) for each in self.timelines)
        for suffix, text in (
            (".gtkw", gtkwave_view(path, bench, groups, cycles * CYCLE_PS)),
            (".sucl", surfer_view(path, bench, groups)),
        ):
            write_file(path.with_suffix(suffix), text.encode())

    def for_bench(self) -> dict[str, object]:
        """What the template of the bench needs to know: the file, and of every unit what it has at most."""
        units = [
            {
                "name": of[0].unit,
                "executions": max(1, *(len(each.executions) for each in of)),
                "texts": max(1, *(len(each.texts) for each in of)),
            }
            for of in zip(*self.timelines, strict=True)
        ]
        return {"file": self.name, "units": units, "programs": len(self.programs)}


def timeline_of(program: Program, executed: dict[str, list[tuple[int, int, int]]]) -> Timeline:
    """The timeline of a program; ``executed`` has by unit what it executes: instruction, cycles of start and end."""
    many = len(program.operators) > 1

    def text(number: int) -> str:
        made = program.instructions[number]
        operator = f"{program.operators[made.operator]}: " if many else ""
        return f"{number} {operator}{title(made)}"

    return tuple(
        UnitTimeline(
            unit, tuple(TimelineExecution(*each) for each in runs), {n: text(n) for n in sorted({r[0] for r in runs})}
        )
        for unit, runs in executed.items()
    )


def write_timeline(folder: Path, index: int, timeline: Timeline) -> None:
    """The files that the bench reads for its case ``index``, for ``$readmemh``."""
    for number, unit in enumerate(timeline):
        place = {instruction: n for n, instruction in enumerate(unit.texts)}
        lines = [f"{e.begins:012x}{e.ends:012x}{place[e.instruction]:08x}" for e in unit.executions]
        (folder / f"model_{index}_{number}.hex").write_text(_words(lines), encoding="ascii")
        texts = [_characters(each).hex() for each in unit.texts.values()]
        (folder / f"texts_{index}_{number}.hex").write_text(_words(texts), encoding="ascii")


def _words(lines: Sequence[str]) -> str:
    """Words from address 0 on; a memory may be larger than what is read."""
    return "".join(f"{line}\n" for line in ("@0", *lines)) if lines else ""


def _characters(text: str) -> bytes:
    """A text as a viewer shows it, filled up with blanks."""
    return text.encode("ascii", "replace")[:TEXT_BYTES].ljust(TEXT_BYTES)


class Signal(Struct, frozen=True):
    """A signal in a view: its name below the bench, the number of its bits, and whether these are characters."""

    name: str
    bits: int = 1
    text: bool = False


def view(units: Sequence[str], ports: Sequence[str]) -> list[tuple[str, list[Signal]]]:
    """What a viewer should show, in groups: every unit of RTL and model, and the handshakes of the tile's ``ports``."""
    program = Signal("timeline.running", 8 * TEXT_BYTES, True)
    groups = [("run", [Signal("clk"), program, Signal("trace_cycle", 64), Signal("irq"), Signal("differs")])]
    for unit in units:
        shown = [Signal(f"timeline.{unit}.{side}", 8 * TEXT_BYTES, True) for side in ("rtl", "model")]
        shown += [Signal(f"timeline.{unit}.{side}_in_flight", 32) for side in ("rtl", "model")]
        groups.append((unit, [*shown, Signal(f"timeline.{unit}.differs")]))
    groups.append(("handshakes", [Signal(f"dut.{port}") for port in ports]))
    return groups


def gtkwave_view(waves: Path, bench: str, groups: Sequence[tuple[str, list[Signal]]], picoseconds: int) -> str:
    """A save file of GTKWave for the file ``waves`` beside it, of so long a time in all.

    GTKWave finds the one from the other's place as long as they stay in one folder, wherever that is.
    """
    whole = waves.absolute()
    zoom = math.log2(max(picoseconds, 1) / FRAMES)
    lines = [f'[dumpfile] "{whole}"', f'[savefile] "{whole.with_suffix(".gtkw")}"', "[timestart] 0"]
    lines += [f"*-{zoom:f} 0" + " -1" * 26, *WINDOW]
    for title_, signals in groups:
        lines += ["@200", f"-{title_}"]
        for each in signals:
            # flags of a trace: characters, hexadecimal, or one bit
            lines.append("@820" if each.text else "@24" if each.bits > 1 else "@28")
            lines.append(f"{bench}.{each.name}" + (f"[{each.bits - 1}:0]" if each.bits > 1 else ""))
    return "".join(f"{line}\n" for line in lines)


def surfer_view(waves: Path, bench: str, groups: Sequence[tuple[str, list[Signal]]]) -> str:
    """A command file of Surfer for the file ``waves`` beside it."""
    lines = [f"load_file {waves.absolute()}"]
    for title_, signals in groups:
        lines.append(f"divider_add {title_}")
        for each in signals:
            lines.append(f"variable_add {bench}.{each.name}")
            if each.bits > 1:
                lines.append(f"item_set_format {'ASCII' if each.text else 'Unsigned'}")
    return "".join(f"{line}\n" for line in [*lines, "zoom_fit"])


__all__ = [
    "TEXT_BYTES",
    "VIEWS",
    "TimelineExecution",
    "Signal",
    "Timeline",
    "UnitTimeline",
    "Waves",
    "gtkwave_view",
    "surfer_view",
    "timeline_of",
    "told",
    "view",
    "write_timeline",
]

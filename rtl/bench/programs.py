"""Runs encoded programs on the RTL of an NPU tile, and collects what they left behind and when."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Opcode, Program, encode, unread_bits
from siliconloom.arch.word import WORD_BYTES
from siliconloom.rtl.bench.images import chunk_words, put_written, write_image
from siliconloom.rtl.bench.runner import Spent, require_simulator, simulate
from siliconloom.rtl.bench.timeline import TEXT_BYTES, Waves, write_timeline
from siliconloom.rtl.flows.rules import protocol_rules
from siliconloom.rtl.npu.channel import channel_geometry
from siliconloom.rtl.npu.geometry import MEMORY_BITS, Geometry, geometry_of
from siliconloom.rtl.npu.registers import COUNTERS, Cause, axi_lite, register_map, unit_names
from siliconloom.rtl.npu.testbench import BENCH_ROWS, memory_parameters

Bytes = NDArray[np.uint8]


class ProgramCase(Struct, frozen=True):
    """A program with the memory that it starts from.

    Parameters
    ----------
    program
        What runs; encoded at ``base``.
    memory
        Main memory from address 0 on; a whole number of bus words.
    base
        Address of the program, a multiple of its word.
    stall
        0: memory answers at once. 1..255: each channel hesitates with this chance in 256, every cycle, and each burst
        is answered up to 63 cycles later.
    fail
        Which beat is answered with an error, counted from 1, or `EACH`: of ``read`` (data), ``write`` (answers to
        bursts), ``fetch`` (the program).
    limit
        Cycles after which the tile counts as hanging.
    origin
        Where the memory begins in the tile's addresses, a multiple of 4 KiB a port; the program's addresses are moved.
    order
        0: the memory takes an address when it comes and its data afterwards; 1: an address when its data is
        offered; 2: data first.
    host
        0: the plainest host there is. Else the number of one with habits: addresses and data in any order, answers
        taken late, registers written byte by byte, a start during the run, polling.
    reset_at
        Cycles after a first start at which the tile is reset, before the run that counts; 0: none.
    scribbled
        0: bits that no tile reads are zero. Else the seed of what stands there.
    channel
        Of a tile with a channel of memory that computes: what stands in it from its address 0 on, the rest is zero.
    """

    program: Program
    memory: Bytes
    base: int
    stall: int = 0
    fail: Mapping[str, int] = field(default_factory=dict)
    limit: int = 1_000_000
    origin: int = 0
    order: int = 0
    host: int = 0
    reset_at: int = 0
    scribbled: int = 0
    channel: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))

    def placed(self) -> tuple[bytes, int]:
        """The program's words with its addresses counted from the origin, and the address where they stand."""
        if not self.origin:
            return self._words(self.program), self.base
        moved = [
            replace(each, memory=replace(each.memory, base=(each.memory.base + self.origin) % (1 << MEMORY_BITS)))
            if each.opcode in (Opcode.LOAD, Opcode.STORE, Opcode.GATHER)
            else each
            for each in self.program.instructions
        ]
        return self._words(replace(self.program, instructions=tuple(moved))), self.base + self.origin

    def _words(self, program: Program) -> bytes:
        """The words of a program, with anything in those bits that no tile reads."""
        if not self.scribbled:
            return program.encode()
        chance, words = np.random.default_rng(self.scribbled), []
        for each in program.instructions:
            unread = unread_bits(each) & int.from_bytes(chance.bytes(WORD_BYTES), "little")
            words.append((int.from_bytes(encode(each), "little") | unread).to_bytes(WORD_BYTES, "little"))
        return b"".join(words)

    def image(self) -> Bytes:
        """A copy of the memory with the program's words in it, as they are encoded for the origin."""
        image = self.memory.copy()
        code = np.frombuffer(self.placed()[0], np.uint8)
        image[self.base : self.base + len(code)] = code
        return image

    def put_back(self, memory: Bytes) -> None:
        """Put the program as it was written in the place of its moved words, if these are unharmed."""
        moved, own = (np.frombuffer(words, np.uint8) for words in (self.placed()[0], self.program.encode()))
        here = memory[self.base : self.base + len(own)]
        if np.array_equal(here, moved):
            here[:] = own


EACH = 0xFFFFFFFF
"""Every beat is an error."""


class ProgramOutcome(Struct):
    """What a tile did.

    Parameters
    ----------
    ended
        It raised its interrupt.
    cycles, cause, instruction
        Registers.
    counters
        By unit and name.
    memory
        The memory afterwards.
    issued, completed
        Cycles at which each unit's instructions left the queue, and from which they were complete; barriers left out.
    channel, commands
        What stands in the channel of memory that computes afterwards, and each command that went out to it during the
        run: cycle, command, place, row, column.
    """

    ended: bool
    cycles: int
    cause: Cause
    instruction: int
    counters: dict[str, dict[str, int]]
    memory: Bytes
    issued: dict[str, list[int]] = field(default_factory=dict)
    completed: dict[str, list[int]] = field(default_factory=dict)
    channel: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    commands: list[tuple[int, ...]] = field(default_factory=list)


def bench_verilog(
    chip: Chip, top: str, words: int, reset: str = "rst", channel_rows: int = BENCH_ROWS, waves: Waves | None = None
) -> str:
    """The bench around ``top``: an AXI4 memory of ``words`` bus words with the latency that the chip's memory has.

    A channel of memory that computes has so many rows in every bank. With ``waves`` the model's timeline is beside it.
    """
    geometry = geometry_of(chip)
    template = Environment(
        loader=PackageLoader("siliconloom.rtl.npu", "."), undefined=StrictUndefined, keep_trailing_newline=True
    ).get_template("memory.v.j2")
    rules = f"{top}_bench"
    text: str = template.render(
        top=top,
        rules=rules,
        words=words,
        chunk=min(chunk_words(geometry.bus), words),
        **memory_parameters(geometry),
        reset=reset,
        reset_active=reset if reset == "rst" else f"!{reset}",
        channel_rows=channel_rows,
        timeline=None if waves is None else waves.for_bench(),
        text_bytes=TEXT_BYTES,
    )
    return text + protocol_rules(rules)


def run_programs(
    chip: Chip,
    sources: Sequence[Path],
    top: str,
    cases: Sequence[ProgramCase],
    *,
    folder: Path,
    simulator: str = "verilator",
    arguments: Sequence[str] = (),
    cycles: int = 0,
    spent: Spent | None = None,
    waves: Waves | None = None,
) -> list[ProgramOutcome]:
    """Run ``cases`` one after the other on the RTL in ``sources``; the time it took is added to ``spent``.

    ``arguments`` are further ones of Verilator's, such as those that make it count what is reached. ``cycles`` are
    about as many as the cases should take together. ``waves`` are written, whatever comes of the run.

    Raises
    ------
    LoomError
        When the simulator is missing or stops before the end.
    """
    require_simulator(simulator)
    folder.mkdir(parents=True, exist_ok=True)
    geometry = geometry_of(chip)
    bus, units = geometry.bus, unit_names(geometry)
    # a power of two, so that programs that need about as much run on the bench that is compiled already
    words = 1 << (max(len(case.memory) for case in cases) // bus - 1).bit_length()
    bench = folder / f"{top}_bench.v"
    if waves is not None:
        waves.write_programs(folder)
    channel = _Channel(geometry, max(len(case.channel) for case in cases))
    bench.write_text(bench_verilog(chip, top, words, channel_rows=channel.rows, waves=waves), encoding="utf-8")
    plan = register_map(geometry)
    registers = {register.name: register.offset for register in plan.registers}
    counters = ["cycles", *(f"{unit}_{counter}" for unit in units for counter in COUNTERS)]
    reads = ["error", *(f"{name}_{half}" for name in counters for half in ("low", "high"))]
    jobs: list[dict[str, Any]] = []
    for index, case in enumerate(cases):
        _, base = case.placed()
        write_image(folder / f"memory_{index}.bin", case.image(), bus, words)
        channel.write(folder, index, case.channel)
        if waves is not None:
            write_timeline(folder, index, waves.timelines[index])
        writes = {
            "program_low": base & 0xFFFFFFFF,
            "program_high": base >> 32,
            "program_words": len(case.program.instructions),
        }
        writes |= {f"semaphore_{i}": s.initial for i, s in enumerate(case.program.semaphores)}
        jobs.append(
            {
                "index": index,
                "stall": case.stall,
                "fail": dict.fromkeys(FAILING, 0) | dict(case.fail),
                "order": case.order,
                "origin": case.origin,
                "host": case.host,
                "restart": not case.fail,
                "reset_at": case.reset_at,
                "writes": writes,
                "reads": reads,
                "limit": case.limit,
            }
        )
    job, results = folder / "job.json", folder / "results.json"
    results.unlink(missing_ok=True)
    job.write_text(json.dumps({"cases": jobs, "registers": registers, "results": str(results)}), encoding="utf-8")
    simulate(
        [*sources, bench],
        f"{top}_bench",
        BENCH_PORTS,
        simulator=simulator,
        folder=folder,
        bench="siliconloom.rtl.bench.npu",
        environment={"LOOM_BENCH": str(job)},
        arguments=["-Wno-fatal", *arguments],
        cycles=cycles,
        spent=spent,
        waves=None if waves is None else folder / waves.name,
    )
    if not results.exists():
        raise LoomError("the simulation stopped before its end")
    outcomes = []
    for index, found in enumerate(json.loads(results.read_text(encoding="utf-8"))):
        values = found["registers"] | {
            name: found["registers"][f"{name}_low"] | found["registers"][f"{name}_high"] << 32 for name in counters
        }
        memory = cases[index].image()
        put_written(folder / f"result_{index}.hex", memory, bus)
        cases[index].put_back(memory)
        outcome = ProgramOutcome(
            ended=found["ended"],
            cycles=values["cycles"],
            cause=Cause(values["error"] & 15),
            instruction=values["error"] >> 8,
            counters={u: {c: values[f"{u}_{c}"] for c in COUNTERS} for u in units},
            memory=memory,
        )
        outcome.issued = {u: [] for u in units}
        outcome.completed = {u: [] for u in units}
        for line in (folder / f"trace_{index}.txt").read_text(encoding="ascii").splitlines():
            cycle, issued, completed = map(int, line.split())
            for number, unit in enumerate(units):
                if issued >> number & 1:
                    outcome.issued[unit].append(cycle)
                if completed >> number & 1:
                    outcome.completed[unit].append(cycle + 1)
        channel.read(folder, index, case=cases[index], outcome=outcome)
        outcomes.append(outcome)
    return outcomes


class _Channel:
    """The channel of memory that computes beside a tile, as files of a bench; a tile without one has no files."""

    def __init__(self, geometry: Geometry, size: int) -> None:
        self.g = None if geometry.pim is None else channel_geometry(geometry)
        self.rows = BENCH_ROWS
        if self.g is not None:
            wide = self.g.tile.banks * self.g.tile.dram.organization.row_bytes
            self.rows = max(BENCH_ROWS, 1 << max(-(-size // wide) - 1, 0).bit_length())

    @property
    def bursts(self) -> int:
        """That the bench's channel has."""
        assert self.g is not None
        return self.rows * self.g.tile.banks * self.g.tile.row_columns

    def write(self, folder: Path, index: int, content: Bytes) -> None:
        """The image that a case begins with."""
        if self.g is not None:
            write_image(folder / f"channel_{index}.bin", content, self.g.burst_bytes, self.bursts)

    def read(self, folder: Path, index: int, *, case: ProgramCase, outcome: ProgramOutcome) -> None:
        """What it ended with, and the commands in between."""
        if self.g is None:
            return
        content = np.zeros(self.bursts * self.g.burst_bytes, np.uint8)
        content[: len(case.channel)] = case.channel
        put_written(folder / f"channel_result_{index}.hex", content, self.g.burst_bytes)
        outcome.channel = content
        lines = (folder / f"commands_{index}.txt").read_text(encoding="ascii").splitlines()
        outcome.commands = [tuple(map(int, line.split())) for line in lines]


FAILING = ("read", "write", "fetch")
BENCH_PORTS = (
    "clk",
    "rst",
    "index",
    "load",
    "dump",
    "stall",
    "order",
    "origin",
    *(f"fail_{name}" for name in FAILING),
    "irq",
    *(f"s_axi_{name}" for name in axi_lite().members),
)

"""Control and status registers of an NPU tile, behind an AXI4-Lite slave port."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Signal
from amaranth.lib.wiring import In, Out, Signature

from siliconloom.arch.errors import LoomError
from siliconloom.arch.faults import Cause
from siliconloom.arch.isa import SEMAPHORE_LIMIT
from siliconloom.arch.opcodes import built_units
from siliconloom.arch.word import SEMAPHORES
from siliconloom.rtl.flows.registers import Field, Register, RegisterMap
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.geometry import MEMORY_BITS, SIZE_BITS, Geometry

IDENTITY = 0x4C4F4F4D
"""The letters LOOM."""
ADDRESS_BITS = 12
SEMAPHORE_BITS = SEMAPHORE_LIMIT.bit_length()
FIRST_COUNTER, UNIT_STRIDE, FIRST_SEMAPHORE = 0x040, 0x020, 0x100
"""Addresses of the first unit's counters, from one unit's to the next one's, and of the first semaphore."""


def unit_names(tile: Any = None) -> tuple[str, ...]:
    """Units that a tile has, in the order of their codes; those of every tile where none is given."""
    return tuple(unit.spec.name for unit in built_units(tile))


COUNTERS = ("busy", "waiting", "completed")


def register_map(tile: Any = None, name: str = "npu") -> RegisterMap:
    """The registers of an NPU tile, a description or a `Geometry`; those of every tile where none is given."""
    units = unit_names(tile)

    def one(name: str, offset: int, access: Any, description: str, width: int = 32, reset: int = 0) -> Register:
        return Register(
            name=name,
            offset=offset,
            description=description,
            fields=(Field(name="value", low=0, width=width, access=access, reset=reset, description=description),),
        )

    causes = "; ".join(f"{c.value} {c.text}" for c in Cause)
    registers = [
        one("identity", 0x000, "ro", "the letters LOOM", reset=IDENTITY),
        Register(
            name="control",
            offset=0x004,
            description="starts a run",
            fields=(
                Field(name="start", low=0, access="wo", description="writing one starts a run unless one is under way"),
                Field(name="interrupt_enable", low=1, description="raise irq at the end of a run"),
            ),
        ),
        Register(
            name="status",
            offset=0x008,
            description="state of the run",
            fields=(
                Field(name="busy", low=0, access="ro", description="a run is under way"),
                Field(name="done", low=1, access="w1c", description="a run has ended; irq follows this bit"),
                Field(name="error", low=2, access="ro", description="the run ended early, see error"),
            ),
        ),
        Register(
            name="error",
            offset=0x00C,
            description="why the run ended early",
            fields=(
                Field(name="cause", low=0, width=4, access="ro", description=causes),
                Field(
                    name="instruction", low=8, width=24, access="ro", description="place of the instruction concerned"
                ),
            ),
        ),
        one("program_low", 0x010, "rw", "address of the program, a multiple of 256 bytes"),
        one("program_high", 0x014, "rw", "upper bits of the address of the program", MEMORY_BITS - 32),
        one("program_words", 0x018, "rw", "instructions of the program, its end included", 24),
        one("cycles_low", 0x020, "ro", "cycles of the run"),
        one("cycles_high", 0x024, "ro", "upper half of the cycles of the run"),
    ]
    meanings = {
        "busy": "cycles in which the unit worked: held the memory port, or took a beat",
        "waiting": "cycles in which an instruction stood in front of the unit and could not start",
        "completed": "instructions completed, barriers not counted",
    }
    if FIRST_COUNTER + UNIT_STRIDE * len(units) > FIRST_SEMAPHORE:
        raise LoomError(f"the tile's registers have no room for the counters of {len(units)} units")
    for number, unit in enumerate(units):
        for place, counter in enumerate(COUNTERS):
            offset = FIRST_COUNTER + UNIT_STRIDE * number + 8 * place
            registers.append(one(f"{unit}_{counter}_low", offset, "ro", f"{unit}: {meanings[counter]}"))
            registers.append(one(f"{unit}_{counter}_high", offset + 4, "ro", f"{unit}: upper half of {counter}"))
    for number in range(SEMAPHORES):
        registers.append(
            one(
                f"semaphore_{number}",
                FIRST_SEMAPHORE + 4 * number,
                "rw",
                "count that the semaphore starts with",
                SEMAPHORE_BITS,
            )
        )
    return RegisterMap(
        name=name,
        address_bits=ADDRESS_BITS,
        description="control and status of an NPU tile",
        registers=tuple(registers),
    )


def axi_lite() -> Signature:
    """An AXI4-Lite master with 32-bit data; the slave has the opposite of it."""
    return Signature(
        {
            "awvalid": Out(1),
            "awready": In(1),
            "awaddr": Out(ADDRESS_BITS),
            "wvalid": Out(1),
            "wready": In(1),
            "wdata": Out(32),
            "wstrb": Out(4),
            "bvalid": In(1),
            "bready": Out(1),
            "bresp": In(2),
            "arvalid": Out(1),
            "arready": In(1),
            "araddr": Out(ADDRESS_BITS),
            "rvalid": In(1),
            "rready": Out(1),
            "rdata": In(32),
            "rresp": In(2),
        }
    )


class Registers(Circuit):
    """The AXI4-Lite slave: one access at a time, reads and writes independent of each other.

    Members
    -------
    s_axi : In(axi_lite)
        AXI4-Lite with 32-bit data. Writes to read-only or unmapped addresses have no effect, unmapped ones read zero.
    start : Out(1)
        Pulse: begin a run.
    program, words, initial : Out
        Address and length of the program; counts that the semaphores start with.
    busy, ended, cause, number, cycles, <unit>_<counter> : In
        State to be read; ``ended`` is a pulse.
    irq : Out(1)
        Level: a run has ended and the interrupt is enabled.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        ports = {
            "s_axi": In(axi_lite()),
            "start": Out(1),
            "program": Out(MEMORY_BITS),
            "words": Out(SIZE_BITS),
            "initial": Out(SEMAPHORES * SEMAPHORE_BITS),
            "busy": In(1),
            "ended": In(1),
            "cause": In(4),
            "number": In(SIZE_BITS),
            "cycles": In(64),
            "irq": Out(1),
        }
        self.geometry = geometry
        for unit in unit_names(geometry):
            ports |= {f"{unit}_{counter}": In(64) for counter in COUNTERS}
        super().__init__(library, library.name("registers"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        initial = [Signal(SEMAPHORE_BITS, name=f"initial_{i}") for i in range(SEMAPHORES)]
        enable, done = Signal(), Signal()
        m.d.comb += [self.initial.eq(Cat(*initial)), self.irq.eq(done & enable)]
        values: dict[str, Any] = {
            "identity": IDENTITY,
            "control": enable << 1,
            "status": Cat(self.busy, done, (self.cause != 0) & ~self.busy),
            "error": Cat(self.cause, Signal(4), self.number),
            "program_low": self.program[:32],
            "program_high": self.program[32:],
            "program_words": self.words,
            "cycles_low": self.cycles[:32],
            "cycles_high": self.cycles[32:],
        }
        for unit in unit_names(self.geometry):
            for counter in COUNTERS:
                value = getattr(self, f"{unit}_{counter}")
                values |= {f"{unit}_{counter}_low": value[:32], f"{unit}_{counter}_high": value[32:]}
        values |= {f"semaphore_{i}": count for i, count in enumerate(initial)}
        plan = register_map(self.geometry)

        # Writes: address and data are taken together once the last response is gone.
        take = Signal()
        strobes = Cat(*(self.s_axi.wstrb[i // 8] for i in range(32)))
        m.d.comb += [
            take.eq(self.s_axi.awvalid & self.s_axi.wvalid & ~self.s_axi.bvalid),
            self.s_axi.awready.eq(take),
            self.s_axi.wready.eq(take),
        ]
        m.d.sync += self.start.eq(0)
        with m.If(self.s_axi.bvalid & self.s_axi.bready):
            m.d.sync += self.s_axi.bvalid.eq(0)
        targets = {
            "program_low": self.program[:32],
            "program_high": self.program[32:],
            "program_words": self.words,
            **{f"semaphore_{i}": count for i, count in enumerate(initial)},
        }
        with m.If(take):
            m.d.sync += self.s_axi.bvalid.eq(1)
            with m.Switch(self.s_axi.awaddr[2:]):
                for name, target in targets.items():
                    with m.Case(plan.by_name[name].offset >> 2):
                        m.d.sync += target.eq((target & ~strobes) | (self.s_axi.wdata & strobes))
                with m.Case(plan.by_name["control"].offset >> 2):
                    with m.If(self.s_axi.wstrb[0]):
                        m.d.sync += [self.start.eq(self.s_axi.wdata[0] & ~self.busy), enable.eq(self.s_axi.wdata[1])]
                with m.Case(plan.by_name["status"].offset >> 2):
                    with m.If(self.s_axi.wstrb[0] & self.s_axi.wdata[1]):
                        m.d.sync += done.eq(0)
        with m.If(self.start):
            m.d.sync += done.eq(0)
        with m.If(self.ended):
            m.d.sync += done.eq(1)

        # Reads.
        found = Signal(32)
        with m.Switch(self.s_axi.araddr[2:]):
            for name, value in values.items():
                with m.Case(plan.by_name[name].offset >> 2):
                    m.d.comb += found.eq(value)
        m.d.comb += self.s_axi.arready.eq(~self.s_axi.rvalid)
        with m.If(self.s_axi.rvalid):
            with m.If(self.s_axi.rready):
                m.d.sync += self.s_axi.rvalid.eq(0)
        with m.Elif(self.s_axi.arvalid):
            m.d.sync += [self.s_axi.rvalid.eq(1), self.s_axi.rdata.eq(found)]
        return m


__all__ = [
    "ADDRESS_BITS",
    "COUNTERS",
    "IDENTITY",
    "SEMAPHORE_BITS",
    "Cause",
    "Registers",
    "register_map",
    "unit_names",
    "axi_lite",
]

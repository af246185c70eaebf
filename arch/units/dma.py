"""The units that move data between main memory and the scratchpad: load and store, which share the memory port."""

from collections.abc import Iterator

from siliconloom.arch.access import Access, where
from siliconloom.arch.description import NpuTile
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Instruction, transfer_operands
from siliconloom.arch.layout import window_of
from siliconloom.arch.opcodes import Format, OpcodeSpec, UnitSpec, register_unit

ENTRY = ("m", "n", "pitch", "local_pitch", "memory", "local")


def reads(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """All rows, and what lies between them."""
    yield Access("store", False, i.a, (i.m - 1) * i.local_pitch + i.n)


def writes(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """All rows, and what lies between them."""
    yield Access("load", True, i.a, (i.m - 1) * i.local_pitch + i.n)


def check_alignment(i: Instruction, tile: NpuTile, number: int) -> None:
    """A row longer than the bus begins at its multiples on both sides; a shorter one stays within one window."""
    bus = tile.dma.bytes_per_cycle
    for name, address, pitch in (("memory", i.memory, i.pitch), ("local", i.a, i.local_pitch)):
        places = [address.base, *address.strides, address.slot, *([pitch] if i.m > 1 else [])]
        unit = window_of(bus, i.n)
        wrong = next((p for p in places if p % unit), None)
        if wrong is not None:
            raise IllegalProgram(
                Cause.MISALIGNED_TRANSFER,
                number,
                f"{where(i, number)}: misaligned transfer: its {name} addresses must be multiples of {unit} for rows "
                f"of {i.n} bytes on a bus of {bus} (got {wrong:#x})",
            )


register_unit(
    UnitSpec(
        name="load",
        code=1,
        entry=ENTRY,
        memory="read",
        opcodes=(
            OpcodeSpec(
                name="load",
                code=4,
                format=Format.TRANSFER,
                sizes=("m", "n"),
                operands=transfer_operands,
                accesses=writes,
                check=check_alignment,
                result="m rows of n bytes from main memory to the scratchpad",
            ),
        ),
    )
)
register_unit(
    UnitSpec(
        name="store",
        code=2,
        entry=ENTRY,
        memory="write",
        opcodes=(
            OpcodeSpec(
                name="store",
                code=5,
                format=Format.TRANSFER,
                sizes=("m", "n"),
                operands=transfer_operands,
                accesses=reads,
                check=check_alignment,
                result="m rows of n bytes from the scratchpad to main memory",
            ),
        ),
    )
)

"""The units that move data between main memory and the scratchpad: load and store, which share the memory port.

They share the port ``store`` of the scratchpad, too: the indices of a gather are read through it, and a transfer has
the memory port to itself.
"""

from collections.abc import Iterator

from siliconloom.arch.access import Access, illegal, where
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Instruction, gather_operands, transfer_operands
from siliconloom.arch.layout import INDEX_BYTES, window_of
from siliconloom.arch.opcodes import Format, OpcodeSpec, UnitSpec, register_unit
from siliconloom.arch.tile import NpuTile

ENTRY = ("m", "n", "pitch", "local_pitch", "memory", "local")


def reads(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """All rows, and what lies between them."""
    yield Access("store", False, i.a, (i.m - 1) * i.local_pitch + i.n)


def writes(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """All rows, and what lies between them."""
    yield Access("load", True, i.a, (i.m - 1) * i.local_pitch + i.n)


def gathers(i: Instruction, tile: NpuTile) -> Iterator[Access]:
    """All rows, what lies between them, and their indices."""
    yield from writes(i, tile)
    yield Access("store", False, i.b, INDEX_BYTES * i.m)


def check_alignment(i: Instruction, tile: NpuTile, number: int) -> None:
    """A row longer than the bus begins at its multiples on both sides; a shorter one stays within one window."""
    if i.compression is not None:
        raise illegal(i, number, "no circuit for decompression; weights lie in memory as the array takes them")
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


def check_gather(i: Instruction, tile: NpuTile, number: int) -> None:
    """A load's rule, and whatever the index is, a row begins at a multiple of the bus; an index at one of its bytes."""
    check_alignment(i, tile, number)
    rules = (
        ("table's rows", (i.memory.base, *i.memory.strides, i.pitch), tile.dma.bytes_per_cycle),
        ("indices", (i.b.base, *i.b.strides, i.b.slot), INDEX_BYTES),
    )
    for name, places, unit in rules:
        wrong = next((p for p in places if p % unit), None)
        if wrong is not None:
            raise IllegalProgram(
                Cause.MISALIGNED_TRANSFER,
                number,
                f"{where(i, number)}: misaligned transfer: its {name} must begin at multiples of {unit} bytes "
                f"(got {wrong:#x})",
            )


register_unit(
    UnitSpec(
        name="load",
        code=1,
        entry=(*ENTRY, "b", "indexed"),
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
            OpcodeSpec(
                name="gather",
                code=11,
                format=Format.GATHER,
                sizes=("m", "n", "k"),
                operands=gather_operands,
                accesses=gathers,
                check=check_gather,
                result="those m of the k rows of a table, n bytes each, whose indices lie in the scratchpad, to the "
                "scratchpad",
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

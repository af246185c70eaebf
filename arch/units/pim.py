"""The unit that drives a channel of memory that computes (`NpuTile.pim`): an instruction is a macro, or some transfers.

The channel is nobody else's. A transfer moves rows of elements between the scratchpad and the rows of its banks; a
vector goes into its global buffer; a product multiplies rows of all banks by that vector. An instruction has the
channel to itself until its last command has gone out and its last datum has arrived, so what stands in the banks, and
in the buffer, is what the instructions before it left there.

A bank's lanes multiply in bf16, so that is what stands in the channel; in the scratchpad an element has the tile's own
format (`arch.tile.NpuTile.circuit_format`). An fp32 element is rounded as it enters the channel (to nearest, ties to
even), and widened as it leaves; so is an fp32 sum where the tile's elements are in bf16.

Bytes of the channel are counted through a row of a bank, then through the banks, then through their rows. The vector
number o of a product with rows of ``s`` segments therefore begins at row ``o // (s * banks)`` of bank ``o % banks``,
segment ``o // banks % s``, and the sums of a round lie in the order of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from siliconloom.arch.access import Access, illegal
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import Instruction, compute_operands, transfer_operands
from siliconloom.arch.opcodes import Format, Opcode, OpcodeSpec, UnitSpec, register_unit
from siliconloom.arch.pim import CHANNEL_BYTES, RESULT_BYTES, Macro, MacroKind, PimTile, check_macro
from siliconloom.arch.tile import NpuTile

READING, WRITING = "pim_vector", "pim_result"
"""Ports of the scratchpad: what goes to the channel, and what comes from it."""


def burst_of(tile: NpuTile) -> int:
    """Bytes of the scratchpad that are a burst of the channel."""
    assert tile.pim is not None
    return tile.pim.dram.organization.request_bytes * tile.element_bytes // CHANNEL_BYTES


def results_of(tile: NpuTile) -> int:
    """Bytes of the scratchpad that are a burst of sums."""
    assert tile.pim is not None
    return tile.pim.dram.organization.request_bytes * tile.element_bytes // RESULT_BYTES


def place_of(pim: PimTile, address: int) -> tuple[int, int, int]:
    """Bank, row and burst of the row at an address of the channel, in bytes."""
    burst = address // pim.dram.organization.request_bytes
    column, place = burst % pim.row_columns, burst // pim.row_columns
    return place % pim.banks, place // pim.banks, column


def macros_of(pim: PimTile, i: Instruction, indices: Sequence[int]) -> list[Macro]:
    """The macros of an instruction of the unit at the given loop indices, outermost first.

    Raises
    ------
    LoomError
        When one does not fit the channel.
    """
    burst = pim.dram.organization.request_bytes
    if i.opcode in (Opcode.PIM_WRITE, Opcode.PIM_READ):
        kind = MacroKind.WRITE if i.opcode == Opcode.PIM_WRITE else MacroKind.READ
        made = []
        for number in range(i.m):
            bank, row, column = place_of(pim, i.memory.at(indices) + number * i.pitch)
            made.append(Macro(kind=kind, bank=bank, row=row, column=column, columns=i.n // burst))
    elif i.opcode == Opcode.PIM_VECTOR:
        made = [Macro(kind=MacroKind.GWRITE, columns=i.m, column=i.b.at(indices))]
    else:
        made = [product_of(pim, i.m, i.n, i.k, row=i.d.at(indices), column=i.b.at(indices))]
    for macro in made:
        check_macro(pim, macro)
    return made


def product_of(pim: PimTile, rounds: int, segments: int, bursts: int, *, row: int = 0, column: int = 0) -> Macro:
    """A product of vectors of so many bursts: longer ones than a row go on in the rows behind it."""
    chunks = -(-bursts // pim.row_columns)
    columns = bursts if chunks == 1 else pim.row_columns
    last = bursts - (chunks - 1) * columns if chunks > 1 else 0
    return Macro(
        kind=MacroKind.GEMV,
        row=row,
        rounds=rounds,
        chunks=chunks,
        segments=segments,
        columns=columns,
        last_columns=last,
        column=column,
    )


def _moved(port: str, i: Instruction, tile: NpuTile, *, writes: bool) -> Iterator[Access]:
    width = i.n * tile.element_bytes // CHANNEL_BYTES
    yield Access(port, writes, i.a, (i.m - 1) * i.local_pitch + width)


def _check_channel(i: Instruction, tile: NpuTile, number: int) -> PimTile:
    if tile.pim is None:
        raise illegal(i, number, "no circuit for the unit pim; there is no channel that computes (tile.pim)")
    return tile.pim


def check_transfer(i: Instruction, tile: NpuTile, number: int) -> None:
    """Rows are whole bursts, and lie in a row of a bank, wherever the loops are."""
    pim = _check_channel(i, tile, number)
    o = pim.dram.organization
    if i.n % o.request_bytes or i.n > o.row_bytes:
        rule = f"rows of a channel are whole bursts of {o.request_bytes} bytes, at most {o.row_bytes} (got {i.n})"
        raise illegal(i, number, rule)
    unit = 1 << (i.n - 1).bit_length()
    places = [i.memory.base, *i.memory.strides, *([i.pitch] if i.m > 1 else [])]
    if wrong := next((p for p in places if p % unit), None):
        raise illegal(i, number, f"rows of {i.n} bytes begin at multiples of {unit} in the channel (got {wrong:#x})")
    port = burst_of(tile)
    places = [i.a.base, i.a.slot, *i.a.strides, *([i.local_pitch] if i.m > 1 else [])]
    if wrong := next((p for p in places if p % port), None):
        raise illegal(i, number, f"rows begin at multiples of {port} in the scratchpad (got {wrong:#x})")
    last = i.memory.base + (i.m - 1) * i.pitch + i.n
    if last > o.capacity:
        raise illegal(i, number, f"the channel has {o.capacity:,} bytes (got {last:,})")


def check_product(i: Instruction, tile: NpuTile, number: int) -> None:
    """What a macro of the channel may be, where no loop moves it."""
    pim = _check_channel(i, tile, number)
    places = (i.b, i.d) if i.opcode == Opcode.PIM else (i.b,)
    if any(each.slot or each.parity or each.odd for each in places):
        raise illegal(i, number, "rows of banks and bursts of the global buffer have no slots")
    try:
        macros_of(pim, i, ())
    except LoomError as error:
        raise illegal(i, number, str(error)) from None


register_unit(
    UnitSpec(
        name="pim",
        code=5,
        needs="pim",
        entry=("opcode", "m", "n", "k", "pitch", "local_pitch", "memory", "a", "b", "c", "d"),
        opcodes=(
            OpcodeSpec(
                name="pim",
                code=8,
                format=Format.COMPUTE,
                sizes=("m", "n", "k"),
                operands=lambda i: compute_operands(i, f"{i.m}x{i.n}x{i.k}"),
                accesses=lambda i, tile: (Access(WRITING, True, i.c, i.m * i.n * tile.pim.banks * tile.element_bytes),),
                multiples=lambda i, tile: {"c": results_of(tile)},
                check=check_product,
                result="m rounds of the channel's banks: the sums of n segments a bank, each of k bursts of the rows "
                "from d on, times those of the global buffer from b on; element by element to c",
            ),
            OpcodeSpec(
                name="pim_write",
                code=12,
                format=Format.TRANSFER,
                sizes=("m", "n"),
                operands=transfer_operands,
                accesses=lambda i, tile: _moved(READING, i, tile, writes=False),
                check=check_transfer,
                result="m rows of n bytes of the channel, from the scratchpad",
            ),
            OpcodeSpec(
                name="pim_read",
                code=13,
                format=Format.TRANSFER,
                sizes=("m", "n"),
                operands=transfer_operands,
                accesses=lambda i, tile: _moved(WRITING, i, tile, writes=True),
                check=check_transfer,
                result="m rows of n bytes of the channel, to the scratchpad",
            ),
            OpcodeSpec(
                name="pim_vector",
                code=14,
                format=Format.COMPUTE,
                sizes=("m",),
                operands=lambda i: compute_operands(i, f"{i.m}"),
                accesses=lambda i, tile: (Access(READING, False, i.a, i.m * burst_of(tile)),),
                multiples=lambda i, tile: {"a": burst_of(tile)},
                check=check_product,
                result="m bursts to the channel's global buffer, from its burst b on, from a in the scratchpad",
            ),
        ),
    )
)

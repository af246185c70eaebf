"""What a channel is told, and what it tells its DRAM: macros in, commands out, as the payloads of streams."""

from __future__ import annotations

from amaranth.lib import data

from siliconloom.rtl.pim.geometry import CODE_BITS, PimGeometry


def transfer_macro(g: PimGeometry) -> data.StructLayout:
    """A READ or a WRITE, as ``arch.pim.Macro``."""
    return data.StructLayout(
        {"write": 1, "bank": g.bank_bits, "row": g.row_bits, "column": g.column_bits, "columns": g.columns_bits}
    )


def compute_macro(g: PimGeometry) -> data.StructLayout:
    """A GEMV (``gemv``) or a GWRITE, as ``arch.pim.Macro``; ``integer`` for int8 and not bf16 operands."""
    return data.StructLayout(
        {
            "gemv": 1,
            "row": g.row_bits,
            "rounds": g.count_bits,
            "chunks": g.count_bits,
            "segments": g.segment_bits,
            "columns": g.columns_bits,
            "last_columns": g.columns_bits,
            "column": g.address_bits,
            "apart": 1,
            "integer": 1,
        }
    )


def bank_command(g: PimGeometry, place: int) -> data.StructLayout:
    """A command as ``sim.pim.channel.ChannelRun.commands`` has it, with so many bits for its place."""
    return data.StructLayout({"code": CODE_BITS, "place": place, "row": g.row_bits, "column": g.column_bits})

"""What one channel of a memory that computes is given to do, besides attention."""

from __future__ import annotations

import numpy as np
from msgspec.structs import asdict

from siliconloom.arch import DataType
from siliconloom.arch.memo import QUICK, key_of, shared_memo
from siliconloom.arch.pim import Macro, MacroKind, PimTile, check_macro
from siliconloom.mapper.pim.offload import weight_macros
from siliconloom.sim.pim.channel import MACRO_FIELDS, ChannelRun, Int, macro_table, run_channel

PROBE_ROWS = 4096
"""Rows of the stream that measures a channel's bandwidth."""


def channel_run(pim: PimTile, table: Int) -> ChannelRun:
    """`sim.pim.channel.run_channel`, remembered: many channels of many plans are given the same to do."""
    table = np.ascontiguousarray(table, np.int64)
    key = key_of("channel", pim.model_dump_json(), table.tobytes())
    return ChannelRun(**shared_memo().recall(key, lambda: asdict(run_channel(pim, table)), quick=QUICK))


def stream_bandwidth(pim: PimTile) -> float:
    """Bytes per cycle that one channel delivers to a stream of whole rows, bank after bank, with refresh."""
    rows = row_stream(pim, PROBE_ROWS, 0)
    return PROBE_ROWS * pim.dram.organization.row_bytes / channel_run(pim, rows).cycles


def products(pim: PimTile, rows: int, length: int, vectors: int, dtype: DataType) -> ChannelRun:
    """One channel's products of ``vectors`` vectors with ``rows`` rows of a weight matrix, one after the other."""
    macros = weight_macros(pim, rows, length, dtype)
    for macro in macros:
        check_macro(pim, macro)
    return channel_run(pim, np.tile(macro_table(macros), (vectors, 1)))


def row_stream(pim: PimTile, rows: int, over: int) -> Int:
    """Reads of whole rows, evenly offered within ``over`` cycles: ranks and bank machines in turn, then the banks.

    Returns rows of `sim.pim.channel.MACRO_FIELDS`.
    """
    ranks, inner = pim.dram.organization.ranks, pim.banks_per_rank
    number = np.arange(rows)
    table = np.tile(macro_table([Macro(kind=MacroKind.READ, columns=pim.row_columns)]), (rows, 1))
    table[:, MACRO_FIELDS.index("bank")] = number % ranks * inner + (number + number // inner) % inner
    table[:, MACRO_FIELDS.index("arrival")] = number * over // max(rows, 1)
    return table

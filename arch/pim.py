"""Processing in memory: DRAM banks with multiply-accumulate lanes beside them, and the macros that drive a channel.

A channel has a global buffer that holds a vector, and in every bank a multiply-accumulate unit with a few accumulators.
Its command sequencer takes *macros* from two streams, of computation and of transfers, and turns them into DRAM
commands that keep the memory's timing. ``sim.pim.channel`` says when each command goes out; the RTL does the same.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Struct
from pydantic import BeforeValidator, Field, model_validator

from siliconloom.arch.datatype import DataType
from siliconloom.arch.document import Description, rule_at
from siliconloom.arch.dram import Dram, DramCells, DramController, Refresh, named_dram
from siliconloom.arch.errors import LoomError
from siliconloom.arch.quantity import Bytes

RESULT_BYTES = 4
"""Of an accumulator: fp32, or int32 for int8 operands."""
CHANNEL_BYTES = 2
"""Of an element in the rows of a channel that an npu tile drives: bf16."""
CHANNEL_MAPPING = "rorabgbacoch"
"""Of an address of a channel that computes, from its top bit down, as `arch.units.pim.place_of` takes it apart."""
MULTIPLY_STAGES = 1
"""Cycles from operands to products."""
ACCUMULATE_STAGES = 1
"""Cycles from the sum of the products to the accumulator."""


class ChannelController(Description):
    """What of a controller a channel that computes has: its sequencer takes macros in order and has no requests."""

    LATER: ClassVar[dict[str, str]] = {
        key: "a channel that computes has no queue of requests and no policy for them; its macros keep their order"
        for key in DramController.model_fields
        if key != "refresh"
    }

    refresh: Refresh = Field(default="rank", description="of all banks of a rank at once, or none")


class ChannelDram(DramCells):
    """A memory whose banks compute: the cells, without what says how requests of others are served.

    Of a memory that is named, the cells and the refresh are taken; its controller and mapping are for requests.
    """

    LATER: ClassVar[dict[str, str]] = {
        "xor": "macros and instructions of a channel that computes name banks; nothing is mixed into their number"
    }

    controller: ChannelController = Field(default=ChannelController(), description="its refresh")
    mapping: str = Field(
        default=CHANNEL_MAPPING,
        description="of an address, from its top bit down: a row, a bank, a burst of the row; no other is built",
    )

    @model_validator(mode="after")
    def _check(self) -> ChannelDram:
        if self.mapping.replace("ch", "", 1) == CHANNEL_MAPPING.replace("ch", ""):
            return self
        rule = (
            f"not supported: a channel that computes is addressed by row, bank and burst of the row: {CHANNEL_MAPPING}"
        )
        raise rule_at("mapping", rule, self.mapping)


def _cells(value: object) -> object:
    """The cells of a memory that is named, or read already."""
    found = named_dram(value)
    if not isinstance(found, Dram):
        return found
    kept = {name: getattr(found, name) for name in DramCells.model_fields}
    controller = ChannelController(refresh=found.controller.refresh)
    return ChannelDram.model_construct(**kept, controller=controller, mapping=CHANNEL_MAPPING)


NamedCells = Annotated[ChannelDram, BeforeValidator(_cells)]
"""A memory whose banks compute within another description, or the name of one in the library."""


class PimTile(Description):
    """Channels of DRAM whose banks compute: bank-side lanes, a global buffer, a command sequencer."""

    kind: Literal["pim"] = Field(description="channels of DRAM whose banks compute")
    dram: NamedCells = Field(description="one channel: a description, or the name of one in the library")
    channels: int = Field(default=1, ge=1, le=1024, description="equal and independent")
    lanes: int = Field(ge=1, le=1024, description="16-bit multipliers per bank; each does two int8 products")
    accumulators: int = Field(default=4, ge=1, le=64, description="sums that a bank holds at once")
    global_buffer: Bytes = Field(description="vector buffer shared by the banks of a channel")
    operands: tuple[DataType, ...] = Field(
        default=(DataType.BF16,), min_length=1, description="formats that the lanes multiply: bf16, fp16, int8"
    )
    activate_group: Literal[1, 2, 4] = Field(default=4, description="banks that one command activates, within tFAW")
    activations: Literal["shared", "separate"] = Field(
        default="shared",
        description="whether the banks' lanes and transfers share tRRD and tFAW of a rank, or each have their own",
    )
    commands: Literal["all_bank", "per_bank"] = Field(
        default="all_bank", description="a dot product command reaches every bank of the channel, or one"
    )
    dual_row_buffer: bool = Field(
        default=False, description="reads and writes go on while banks compute; otherwise one waits for the other"
    )
    refresh_ranks: Literal["together", "in_turn"] = Field(
        default="together",
        description="ranks are refreshed at once, so that computation in all banks pauses once in tREFI, or in turn, "
        "so that transfers to another rank go on",
    )
    bank_machines: Literal[1, 2] = Field(default=2, description="transfers under way at once, in different banks")

    @model_validator(mode="after")
    def _check(self) -> PimTile:
        o = self.dram.organization
        if o.channels != 1:
            raise ValueError(f"dram.organization describes one channel; give their number as channels ({o.channels})")
        if self.global_buffer % o.request_bytes:
            raise ValueError(f"global_buffer must be a multiple of a burst of {o.request_bytes} bytes")
        if self.banks_per_rank % self.activate_group:
            raise ValueError(f"activate_group must divide the {self.banks_per_rank} banks of a rank")
        if self.lanes & (self.lanes - 1):
            raise ValueError(f"lanes must be a power of two (got {self.lanes})")
        if o.request_bytes % (2 * self.lanes) and (2 * self.lanes) % o.request_bytes:
            raise ValueError(
                f"{self.lanes} lanes of 2 bytes neither divide nor fill a burst of {o.request_bytes} bytes"
            )
        unfit = [d for d in self.operands if d not in (DataType.BF16, DataType.FP16, DataType.INT8)]
        if unfit:
            raise ValueError(f"operands must be among bf16, fp16 and int8 (got {unfit[0].value})")
        return self

    @property
    def banks_per_rank(self) -> int:
        return self.dram.organization.bank_groups * self.dram.organization.banks

    @property
    def banks(self) -> int:
        """Banks of a channel, over its ranks."""
        return self.dram.organization.ranks * self.banks_per_rank

    @property
    def refreshed_banks(self) -> int:
        """Banks that one refresh command reaches."""
        return self.banks if self.refresh_ranks == "together" else self.banks_per_rank

    @property
    def row_columns(self) -> int:
        """Bursts in a row."""
        return self.dram.organization.row_bytes // self.dram.organization.request_bytes

    @property
    def beats(self) -> int:
        """Cycles for which a bank's lanes work on one burst."""
        return max(self.dram.organization.request_bytes // (2 * self.lanes), 1)

    def beat_elements(self, dtype: DataType) -> int:
        """Elements of a burst that a bank's lanes multiply in one cycle."""
        return self.burst_elements(dtype) // self.beats

    @property
    def dot_interval(self) -> int:
        """Cycles between two dot products of a bank: tCCD_L, or what the lanes need."""
        return max(self.dram.timing.tCCD_L, self.beats)

    @property
    def tree_levels(self) -> int:
        """Registered levels of the adder tree over the lanes, those of int8, which are twice as many."""
        return (min(2 * self.lanes, self.dram.organization.request_bytes)).bit_length() - 1

    @property
    def dot_latency(self) -> int:
        """Cycles from a dot product's command until its sum can be read."""
        return self.dram.timing.CL + self.beats + MULTIPLY_STAGES + self.tree_levels + ACCUMULATE_STAGES

    @property
    def peak_macs(self) -> int:
        """Most 16-bit multiply-accumulates per cycle of the DRAM's clock."""
        return self.channels * self.banks * min(self.lanes, self.dram.organization.request_bytes // 2)

    def burst_elements(self, dtype: DataType) -> int:
        """Elements in a burst."""
        return self.dram.organization.request_bytes // dtype.size(1)


class MacroKind(IntEnum):
    """What a macro does."""

    GWRITE = 0
    GEMV = 1
    READ = 2
    WRITE = 3


class Command(IntEnum):
    """Commands of a channel; those from ``PIM_ACT`` on are the PIM's own."""

    ACT = 0
    RD = 1
    WR = 2
    PRE = 3
    REF = 4
    PIM_ACT = 5
    PIM_DOT = 6
    PIM_PRE = 7
    PIM_READ = 8
    PIM_WRITE = 9


class Macro(Struct, frozen=True, kw_only=True):
    """One macro of a channel.

    Parameters
    ----------
    kind
        ``GWRITE``: ``columns`` bursts into the global buffer, from burst ``column`` on.
        ``GEMV``: ``rounds`` times one result per bank and segment, each a sum over ``chunks`` rows of every bank.
        ``READ``, ``WRITE``: ``columns`` bursts of one row, from burst ``column`` on.
    bank
        Of a transfer: rank, bank group and bank, as one number.
    row
        First row. Round r, chunk j of a GEMV is in row ``row + r * chunks + j`` of every bank.
    rounds, chunks
        Of a GEMV.
    segments
        Of a GEMV of one chunk: vectors that stand one after the other in a row, each with an accumulator of its own.
    columns
        Of a GEMV: bursts of a segment; ``last_columns`` in the last chunk.
    column
        Of a GEMV: burst of the global buffer that its vector begins with. Chunk j goes on where chunk j - 1 ended.
    apart
        Of a GEMV: each segment has a vector of its own in the global buffer, one after the other; otherwise all
        segments share one.
    dtype
        Operand format of a GEMV.
    arrival
        Cycle from which the macro is offered.
    after, delay
        Of the host: offered no sooner than ``delay`` cycles after the data of macro number ``after`` have crossed the
        bus, an earlier one of the same stream; -1 for none.
    """

    kind: MacroKind
    bank: int = 0
    row: int = 0
    rounds: int = 1
    chunks: int = 1
    segments: int = 1
    columns: int = 1
    last_columns: int = 0
    column: int = 0
    apart: bool = False
    dtype: DataType = DataType.BF16
    arrival: int = 0
    after: int = -1
    delay: int = 0

    @property
    def computes(self) -> bool:
        """Whether the macro is of the stream of computation."""
        return self.kind in (MacroKind.GWRITE, MacroKind.GEMV)


def check_macro(tile: PimTile, macro: Macro) -> None:
    """Refuse a macro that the tile cannot execute; raises `LoomError` that names the field."""
    o, buffer = tile.dram.organization, tile.global_buffer // tile.dram.organization.request_bytes
    bounds: list[tuple[str, int, int, int]] = [("columns", macro.columns, 1, tile.row_columns)]
    if macro.kind == MacroKind.GWRITE:
        bounds = [("columns", macro.columns, 1, buffer), ("column", macro.column, 0, buffer - macro.columns)]
    elif macro.kind == MacroKind.GEMV:
        last = macro.last_columns or macro.columns
        used = macro.columns * ((macro.segments if macro.apart else 1) + macro.chunks - 1) - macro.columns + last
        bounds += [
            ("segments", macro.segments, 1, tile.accumulators if macro.chunks == 1 else 1),
            ("segments * columns", macro.segments * macro.columns, 1, tile.row_columns),
            ("last_columns", last, 1, macro.columns),
            ("column", macro.column, 0, buffer - used),
            ("rounds", macro.rounds, 1, o.rows),
            ("chunks", macro.chunks, 1, o.rows),
            ("row", macro.row, 0, o.rows - macro.rounds * macro.chunks),
        ]
    else:
        bounds += [
            ("bank", macro.bank, 0, tile.banks - 1),
            ("row", macro.row, 0, o.rows - 1),
            ("column", macro.column, 0, tile.row_columns - macro.columns),
        ]
    for name, value, low, high in bounds:
        if not low <= value <= high:
            raise LoomError(f"{macro.kind.name.lower()}: {name} must be in {low}..{high} (got {value})")
    if macro.kind == MacroKind.GEMV and macro.dtype not in tile.operands:
        raise LoomError(f"gemv: {macro.dtype.value} is not among the tile's operands")


def describe(macros: list[Macro]) -> list[dict[str, Any]]:
    """Macros as plain data, for reports."""
    return [
        {
            "kind": m.kind.name.lower(),
            **{name: getattr(m, name) for name in ("bank", "row", "rounds", "chunks", "segments", "columns", "column")},
        }
        for m in macros
    ]

"""DRAM down to the command: organisation, timing, controller and address mapping of one memory.

Names of timings are JEDEC's; all but the clock period are in cycles of the command clock. A *_S timing is between
different bank groups, a *_L timing within one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from siliconloom.arch.document import Description, Document, Name, find_file
from siliconloom.arch.errors import LoomError
from siliconloom.arch.names import library_names
from siliconloom.arch.quantity import Duration

LIBRARY = Path(__file__).parent / "library" / "dram"
FIELDS = ("ch", "ra", "bg", "ba", "ro", "co")
"""Parts of an address: channel, rank, bank group, bank, row, column."""

_PART = re.compile("(ch|ra|bg|ba|ro|co)([0-9]{0,2})")
_XOR = re.compile(r"(ch|ra|bg|ba)\^(ro|co)([0-9]{1,2})")

Standard = Literal["DDR4", "DDR5", "LPDDR5", "LPDDR5X", "GDDR6", "HBM2", "HBM2E", "HBM3", "HBM3E"]
Cycles = Annotated[int, Field(ge=1, le=100_000)]


def _power(value: int) -> bool:
    return value & (value - 1) == 0


class DramOrganization(Description):
    """How many of what; all sizes are powers of two."""

    channels: int = Field(default=1, ge=1, le=4096, description="independent channels, or pseudo-channels of HBM")
    ranks: int = Field(default=1, ge=1, le=16, description="per channel")
    bank_groups: int = Field(ge=1, le=16, description="per rank")
    banks: int = Field(ge=1, le=64, description="per bank group")
    rows: int = Field(ge=1, le=2**24, description="per bank")
    columns: int = Field(ge=1, le=2**16, description="per row, each as wide as the data bus")
    bus_bits: int = Field(ge=4, le=1024, description="width of a channel's data bus")
    burst_length: int = Field(ge=1, le=64, description="beats of a burst")
    beats_per_clock: int = Field(
        default=2, ge=1, le=16, description="of a data pin, per command clock: 2 in DDR4, 4 in HBM3, 8 in LPDDR5"
    )

    @model_validator(mode="after")
    def _check(self) -> DramOrganization:
        for name, value in self:
            if not _power(value):
                raise ValueError(f"{name} must be a power of two (got {value})")
        if self.columns < self.burst_length:
            raise ValueError(f"a row of {self.columns} columns is shorter than a burst of {self.burst_length}")
        if self.bus_bits < 8:
            raise ValueError("bus_bits must be at least 8")
        return self

    @property
    def request_bytes(self) -> int:
        """Bytes of one burst."""
        return self.bus_bits // 8 * self.burst_length

    @property
    def row_bytes(self) -> int:
        """Bytes of one bank's row."""
        return self.bus_bits // 8 * self.columns

    @property
    def capacity(self) -> int:
        """Bytes of the whole memory."""
        return self.channels * self.ranks * self.bank_groups * self.banks * self.rows * self.row_bytes


class DramTiming(Description):
    """JEDEC's constraints between commands, in cycles; ``tRC`` is tRAS + tRP when absent."""

    CL: Cycles = Field(description="read command to first data")
    CWL: Cycles = Field(description="write command to first data")
    tRCD: Cycles = Field(description="activation to read or write of the row")
    tRP: Cycles = Field(description="precharge to the next activation of the bank")
    tRAS: Cycles = Field(description="activation to precharge of the bank")
    tRC: Cycles | None = Field(default=None, description="activations of one bank; tRAS + tRP when absent")
    tRRD_S: Cycles = Field(description="activations of banks in different groups")
    tRRD_L: Cycles = Field(description="activations of banks in one group")
    tFAW: Cycles = Field(description="window that holds at most four activations of a rank")
    tCCD_S: Cycles = Field(description="reads or writes of different bank groups")
    tCCD_L: Cycles = Field(description="reads or writes of one bank group")
    tWR: Cycles = Field(description="last data written to precharge")
    tWTR_S: Cycles = Field(description="last data written to a read of another bank group")
    tWTR_L: Cycles = Field(description="last data written to a read of the same bank group")
    tRTP: Cycles = Field(description="the longer one, within a bank group, where a standard has two")
    tRTRS: int = Field(default=1, ge=0, le=100, description="turn-around of the data bus between ranks")
    tRFC: Cycles = Field(description="refresh of all banks to the next command")
    tRFCpb: Cycles | None = Field(default=None, description="per-bank refresh; tRFC when absent")
    tREFI: Cycles = Field(description="mean time between refreshes")

    @model_validator(mode="after")
    def _check(self) -> DramTiming:
        for low, high in (
            ("tRCD", "tRAS"),
            ("tRRD_S", "tRRD_L"),
            ("tCCD_S", "tCCD_L"),
            ("tWTR_S", "tWTR_L"),
            ("tRRD_S", "tFAW"),
            ("tRFC", "tREFI"),
            ("tRFCpb", "tRFC"),
        ):
            least, value = getattr(self, low), getattr(self, high)
            if least is not None and value < least:
                raise ValueError(f"{high} must be at least {low} (got {high} {value}, {low} {least})")
        if self.tRC is not None and self.tRC < self.tRAS + self.tRP:
            raise ValueError(f"tRC must be at least tRAS + tRP = {self.tRAS + self.tRP} (got {self.tRC})")
        return self

    @property
    def row_cycle(self) -> int:
        """Cycles between two activations of a bank."""
        return self.tRAS + self.tRP if self.tRC is None else self.tRC


Refresh = Literal["none", "rank", "bank"]


class DramController(Description):
    """Queues and policies of one channel's controller."""

    scheduler: Literal["fr_fcfs", "fcfs"] = Field(default="fr_fcfs", description="ready first, or in order of arrival")
    page: Literal["open", "closed", "timeout", "auto_precharge"] = Field(
        default="open", description="closed: a row is closed by its last waiting burst; auto_precharge: by every burst"
    )
    admission: Literal["channel", "shared"] = Field(
        default="channel",
        description="who waits for a full queue: later requests of the same channel, or all later requests",
    )
    queues: Literal["bank", "shared"] = Field(
        default="bank",
        description="shared: a request keeps its place in the read or write queue until its burst; bank: until it "
        "moves to its bank's queue",
    )
    timeout: Cycles = Field(default=200, description="idle cycles until a row is closed, with page: timeout")
    read_queue: int = Field(default=32, ge=1, le=1024, description="reads that may wait")
    write_queue: int = Field(default=32, ge=1, le=1024, description="writes that may wait")
    write_low: int = Field(default=8, ge=0, le=1024, description="more writes than this are drained when banks idle")
    bank_queue: int = Field(default=8, ge=1, le=256, description="requests waiting in front of each bank")
    row_hits: int = Field(default=4, ge=1, le=2**20, description="hits in a row before a waiting conflict may close it")
    refresh: Refresh = Field(
        default="rank", description="of all banks of a rank at once, of one bank after the other, or none"
    )
    two_commands: bool = Field(default=False, description="row and column commands have a bus each, as in HBM")

    @model_validator(mode="after")
    def _check(self) -> DramController:
        if self.write_low >= self.write_queue:
            raise ValueError(f"write_low ({self.write_low}) must be below write_queue ({self.write_queue})")
        return self


class DramCells(Description):
    """What a datasheet says of a memory, whoever gives it commands."""

    kind: Literal["dram"] = Field(description="what is described")
    name: Name = Field(description="letters, digits, . _ -")
    standard: Standard = Field(description="JEDEC's name of the kind of memory")
    description: str = Field(default="", description="in words, for people")
    source: str = Field(default="", description="where the numbers are from")
    clock_period: Duration = Field(description="tCK of the command clock")
    organization: DramOrganization = Field(description="how many of what")
    timing: DramTiming = Field(description="constraints between commands, in cycles")

    @property
    def burst_cycles(self) -> int:
        """Cycles for which a burst holds the data bus."""
        return max(self.organization.burst_length // self.organization.beats_per_clock, 1)

    @property
    def peak_bandwidth(self) -> float:
        """Bytes per second of all data buses."""
        return (
            self.organization.channels * self.organization.request_bytes / self.burst_cycles / self.clock_period * 1e12
        )


class Dram(DramCells):
    """One memory behind one address space: its cells, and how requests at addresses become commands."""

    controller: DramController = Field(default=DramController(), description="queues and policies of each channel")
    mapping: str = Field(
        description="order of ro, ra, bg, ba, ch, co in an address, from its top bit down; a part with bits (co2) is "
        "split off its field, the one without has the rest"
    )
    xor: tuple[str, ...] = Field(
        default=(),
        description="what is mixed into ch, ra, bg or ba: `ba^ro0` is exclusive-or with the row's bits from 0 on",
    )

    @model_validator(mode="after")
    def _check(self) -> Dram:
        parts = _PART.findall(self.mapping)
        whole = [field for field, bits in parts if not bits]
        if "".join(field + bits for field, bits in parts) != self.mapping or sorted(whole) != sorted(FIELDS):
            raise ValueError(
                f"mapping must be a permutation of {' '.join(FIELDS)}, each once, such as rorabgbachco, and parts of "
                f"some bits split off, such as rocobabgrachco2 (got '{self.mapping}')"
            )
        widths = self.widths()
        for field in FIELDS:
            split = [int(bits) for other, bits in parts if other == field and bits]
            if 0 in split or sum(split) > widths[field]:
                raise ValueError(f"mapping: {field} has {widths[field]} bits (got {split} of them split off)")
        for text in self.xor:
            found = _XOR.fullmatch(text)
            if found is None:
                raise ValueError(f"xor must be of ch, ra, bg, ba with bits of ro or co, such as ba^ro0 (got '{text}')")
            if int(found[3]) >= max(widths[found[2]], 1):
                raise ValueError(f"xor: {found[2]} has {widths[found[2]]} bits, none from {found[3]} on (got '{text}')")
        return self

    def widths(self) -> dict[str, int]:
        """Bits of every field of an address."""
        o = self.organization
        sizes = {
            "ch": o.channels,
            "ra": o.ranks,
            "bg": o.bank_groups,
            "ba": o.banks,
            "ro": o.rows,
            "co": o.columns // o.burst_length,
        }
        return {field: sizes[field].bit_length() - 1 for field in FIELDS}

    def layout(self) -> list[tuple[str, int, int, int]]:
        """Parts of an address from its lowest bit: field, first bit, bits, and which of the field's bits is first."""
        parts = _PART.findall(self.mapping)
        widths = self.widths()
        rest = {
            field: bits - sum(int(b) for other, b in parts if other == field and b) for field, bits in widths.items()
        }
        done = dict.fromkeys(FIELDS, 0)
        found, position = [], self.organization.request_bytes.bit_length() - 1
        for field, text in reversed(parts):
            bits = int(text) if text else rest[field]
            found.append((field, position, bits, done[field]))
            position += bits
            done[field] += bits
        return found

    def shifts(self) -> dict[str, tuple[int, int]]:
        """First bit and number of bits of every field that is not split."""
        split = {field for field, bits in _PART.findall(self.mapping) if bits}
        return {field: (first, bits) for field, first, bits, _ in self.layout() if field not in split}

    def mixed(self) -> list[tuple[str, str, int]]:
        """Exclusive-ors: field, the field mixed into it, and its first bit."""
        found = [_XOR.fullmatch(text) for text in self.xor]
        return [(m[1], m[2], int(m[3])) for m in found if m is not None]


def load_dram(name: str, overrides: list[tuple[str, str]] | None = None) -> Dram:
    """Read a memory from a file or the library, as `arch.load_chip` does."""
    document = Document.load(find_file(name, LIBRARY, "memory"))
    document.override(overrides or [])
    document.expect_kind(["dram"])
    return document.validate(Dram)


def dram_names() -> list[str]:
    """Names of the library's memories."""
    return library_names(LIBRARY)


def named_dram(value: object) -> object:
    """The memory of a name or path, anything else as it is; raises `ValueError`, for validators."""
    try:
        return load_dram(value) if isinstance(value, str) else value
    except LoomError as error:
        raise ValueError(str(error)) from None


NamedDram = Annotated[Dram, BeforeValidator(named_dram)]
"""A memory within another description, or the name of one in the library."""

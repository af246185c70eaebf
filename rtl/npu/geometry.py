"""Sizes of an NPU tile's circuits, derived from its description."""

from __future__ import annotations

from math import gcd

from msgspec import Struct

from siliconloom.arch import timing, word
from siliconloom.arch.array import ARRAY_FORMATS, SystolicArray
from siliconloom.arch.datatype import DataType
from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.layout import MOST_SPLIT, bank_line, is_power, row_unit, sums_lines, sums_pitch
from siliconloom.arch.pim import PimTile
from siliconloom.arch.tile import NpuTile, SystolicTile
from siliconloom.arch.vector import VectorFunction

LOCAL_BITS = word.LOCAL_BITS
"""Bits of a local byte address."""
MEMORY_BITS = 48
"""Bits of a main-memory byte address."""
SIZE_BITS = 24
"""Bits of m, n and k."""
MASK_BITS = word.SEMAPHORES
SLOTS = 2
"""Slots of what is kept of rows, and of what older sums are divided by: one is filled while the other is read."""
PAGE = 4096
"""A burst must not cross a multiple of this many bytes (AMBA AXI4 specification, A3.4.1)."""
MOST_LANES = 256
"""Lanes of the widest vector unit."""
LONGEST_BURST = 256
"""Beats of the longest AXI4 INCR burst."""


def log2(value: int) -> int:
    """Exact binary logarithm of a power of two."""
    return value.bit_length() - 1


class Geometry(Struct, frozen=True):
    """What the circuits of one tile agree on; sizes in bytes unless a name says otherwise.

    Parameters
    ----------
    dtype
        Format of operands and results, `NpuTile.circuit_format`.
    array
        The systolic array.
    lanes
        Lanes of the vector unit.
    row_unit
        `arch.layout.row_unit`: elements.
    bus
        Width of the DMA: of all its AXI4 data buses together.
    ports, port_bytes
        AXI4 data buses, and the width of each.
    line
        Width of a scratchpad bank: the widest access of any unit.
    banks, bank_bytes
        Scratchpad banks, each one contiguous range of addresses.
    accumulator_lines
        Lines of ``cols`` 32-bit sums.
    interval
        `Chip.beat_interval`.
    access
        What the memory moves at once, a bus or several: rows of transfers take the time of whole ones.
    id_bits
        Width of identifiers on the AXI4 buses.
    memory_cycles
        Latency of the memory that the tile was described with; sizes the queue of write responses.
    transpose_rows
        Rows that the vector unit transposes together.
    sum_stages
        Cycles that its additions take in floating point.
    pim
        The channel of memory that computes, where the tile drives one.
    """

    dtype: DataType
    array: SystolicArray
    lanes: int
    row_unit: int
    bus: int
    ports: int
    line: int
    banks: int
    bank_bytes: int
    accumulator_lines: int
    vector_latency: int
    issue_cycles: int
    loop_cycles: int
    queue_depth: int
    program_words: int
    outstanding: int
    interval: int
    access: int
    id_bits: int
    memory_cycles: int
    transpose_rows: int = 1
    sum_stages: int = 1
    pim: PimTile | None = None

    @property
    def port_bytes(self) -> int:
        return self.bus // self.ports

    @property
    def page(self) -> int:
        """Bytes of which a burst must not cross a multiple: a page of every port."""
        return PAGE * self.ports

    @property
    def operand(self) -> DataType:
        """Format of the array's operands, which elements that are wider are rounded to."""
        assert self.array.circuit_format is not None
        return self.array.circuit_format

    @property
    def rounds(self) -> bool:
        """Whether elements are wider than the array's operands."""
        return self.operand is not self.dtype and not self.dtype.is_integer

    @property
    def shares(self) -> bool:
        """As `NpuTile.shares`: elements go into the array's edge as they are, and become operands there."""
        return self.rounds and self.operand.is_integer

    @property
    def edge(self) -> DataType:
        """Format of what comes to the array's edge."""
        return self.dtype if self.shares else self.operand

    @property
    def stationary_formats(self) -> tuple[DataType, ...]:
        """As `NpuTile.stationary_formats`."""
        packed = self.array.weights.formats if self.array.weights is not None else ()
        weights = (*packed, self.operand) if self.rounds else packed
        cache = (*self.array.cache_codes, *self.array.cache_scaled)
        return (*weights, *(dtype for dtype in cache if dtype not in weights))

    @property
    def operand_line(self) -> int:
        """Bytes of a beat of the operand that is loaded, as the array takes it."""
        return self.edge.bits * self.array.load_rows * self.array.cols // 8

    @property
    def stationary(self) -> int:
        """Bytes of a beat of the operand that is loaded: ``load_rows`` x C elements, or C (output stationary)."""
        return self.element * self.array.load_rows * self.array.cols

    @property
    def moving(self) -> int:
        """Bytes of a beat of the operand that moves."""
        return self.element * self.array.rows

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return self.dtype.bits // 8

    @property
    def vector_line(self) -> int:
        """Bytes of a line of the vector unit."""
        return self.element * self.lanes

    @property
    def results(self) -> int:
        """Bytes of a line of sums."""
        return 4 * self.array.cols

    @property
    def sums_pitch(self) -> int:
        """Local addresses from line to line of sums."""
        return sums_pitch(self.array)

    @property
    def part_bits(self) -> int:
        """Binary logarithm of the parts of a line of sums, the shortest of lines that are split."""
        return min(MOST_SPLIT, log2(self.array.cols)) if is_power(self.array.cols) else 0

    @property
    def part(self) -> int:
        """Local addresses of a part of a line of sums."""
        return self.sums_pitch >> self.part_bits

    @property
    def lines_of_block(self) -> int:
        """Lines of sums that a block of the vector unit's columns lies in, at most."""
        cols = self.array.cols
        return -(-(cols - gcd(cols, self.lanes) + self.lanes) // cols)


def has_npu_rtl(chip: Chip) -> bool:
    """Whether the whole tile of ``chip``, an NPU, has RTL; `geometry_of` says why not."""
    try:
        geometry_of(chip)
    except NotSupported:
        return False
    return True


def without_circuit(chip: Chip) -> str | None:
    """A part of a chip that is specified only, with its key; nothing where there is none."""
    if isinstance(chip.tile, NpuTile) and chip.tile.dma.decompression is not None:
        return "a decompressor of weights (tile.dma.decompression)"
    if isinstance(chip.tile, NpuTile | SystolicTile) and chip.tile.array.sparsity is not None:
        return "sparse weights (tile.array.sparsity)"
    if isinstance(chip.tile, NpuTile | SystolicTile) and chip.tile.array.load_port == "shared":
        return "one port for both operands of the array (tile.array.load_port)"
    if isinstance(chip.tile, NpuTile):
        vector, dtype = chip.tile.vector, chip.tile.parameter_format
        if vector.sublanes > 1:
            return f"{vector.sublanes} rows to a slot of the vector unit (tile.vector.sublanes)"
        costs = ((each, vector.cost_of(each, dtype), vector.circuit_cost(each, dtype)) for each in VectorFunction)
        other = next((each for each, stated, circuit in costs if stated != circuit), None)
        if other is not None:
            return f"a cost of {other} that is not its circuit's (tile.vector.costs.{other})"
        if chip.tile.sequencer.launch_cycles:
            return "operators that are launched one after the other (tile.sequencer.launch_cycles)"
    return None


def geometry_of(chip: Chip) -> Geometry:
    """Check that circuits exist for the NPU tile of ``chip``.

    Raises
    ------
    NotSupported
        Naming the key that stands in the way.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    array, memory = tile.array, chip.nearest
    if len(chip.memory) > 1 or memory.channels > 1:
        raise NotSupported(
            f"RTL of a chip with several memory levels, ports or devices ({', '.join(chip.memory)}); the tile's DMA "
            "keeps to the bandwidth of one memory"
        )
    dtype = tile.circuit_format
    if not tile.built:
        raise NotSupported(
            f"RTL of an npu tile for {', '.join(array.operands)} operands; the first may be "
            f"{', '.join(ARRAY_FORMATS)}, or int4 or int16 between elements in fp32 (tile.vector.format)"
        )
    powers = {
        "tile.vector.lanes": tile.vector.lanes,
        "tile.dma.bytes_per_cycle": tile.dma.bytes_per_cycle,
        "tile.dma.port_bytes": tile.dma.port_bytes,
        "memory.access_bytes": memory.access_bytes,
    }
    for key, value in powers.items():
        if not is_power(value):
            raise NotSupported(f"RTL of an npu tile whose {key} is not a power of two (got {value})")
    lanes = tile.vector.lanes
    if not 2 <= lanes <= MOST_LANES:
        raise NotSupported(f"RTL of a vector unit with {lanes} lanes; 2 to {MOST_LANES} are built")
    least = timing.vector_stages(tile.vector.sum_stages)
    if tile.vector.latency < least:
        raise NotSupported(f"RTL of a vector unit with tile.vector.latency below {least}")
    if tile.sequencer.issue_cycles < 2:
        raise NotSupported("RTL of a sequencer with tile.sequencer.issue_cycles below 2")
    bus = tile.dma.bytes_per_cycle
    if bus < 2:
        raise NotSupported("RTL of a DMA with tile.dma.bytes_per_cycle below 2: no bench runs one")
    if memory.access_bytes < bus:
        raise NotSupported(
            f"RTL of an npu tile whose memory.access_bytes ({memory.access_bytes}) are fewer than "
            f"tile.dma.bytes_per_cycle ({bus})"
        )
    line = bank_line(tile)
    bank = tile.scratchpad.capacity // tile.scratchpad.banks
    if bank * tile.scratchpad.banks != tile.scratchpad.capacity or not is_power(bank):
        raise NotSupported(
            f"RTL of scratchpad banks that are no power of two: tile.scratchpad.capacity over tile.scratchpad.banks is "
            f"{tile.scratchpad.capacity} / {tile.scratchpad.banks} bytes"
        )
    if bank < 2 * line:
        raise NotSupported(f"RTL of scratchpad banks of fewer than two lines of {line} bytes (got {bank} bytes)")
    lines = sums_lines(tile)
    if lines < 2:
        raise NotSupported(f"RTL of an accumulator of fewer than two lines of {4 * array.cols} bytes (got {lines})")
    ports = max(bus // tile.dma.port_bytes, 1)
    return Geometry(
        dtype,
        array,
        lanes,
        row_unit(tile),
        bus,
        ports,
        line,
        tile.scratchpad.banks,
        bank,
        lines,
        tile.vector.latency,
        tile.sequencer.issue_cycles,
        tile.sequencer.loop_cycles,
        tile.sequencer.queue_depth,
        tile.sequencer.program_words,
        tile.dma.outstanding,
        chip.beat_interval,
        memory.access_bytes,
        tile.dma.id_bits,
        chip.cycles(memory.latency),
        tile.vector.together,
        tile.vector.sum_stages,
        tile.pim,
    )

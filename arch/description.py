"""What a machine is: tiles, chips, memories, links and systems as typed, immutable descriptions."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from math import gcd
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, WithJsonSchema, field_validator, model_validator

from siliconloom.arch.datatype import (
    CACHE_CODES,
    CACHE_SCALED,
    INTEGER_CODES,
    MX_ELEMENTS,
    DataType,
    pattern_of,
    scale_bits,
)
from siliconloom.arch.document import Description, Document, Name, find_document, rule_at
from siliconloom.arch.dram import Dram, NamedDram
from siliconloom.arch.names import LIBRARY
from siliconloom.arch.pim import PimTile as PimTile
from siliconloom.arch.quantity import Bandwidth, Bytes, Energy, Frequency, Latency, format_bytes, format_si

INTERVAL_ONE = 1 << 16
"""One cycle in the fixed-point format of `Chip.beat_interval`."""

LEVEL_ALIGNMENT = 1 << 16
"""Memory levels begin at multiples of this many bytes."""
ADDRESS_BITS = 48
"""Bits of a main-memory address in an instruction."""

Pattern = Literal["2of4", "block"]


Dataflow = Literal["weight_stationary", "output_stationary", "input_stationary"]

AS_THE_DMA = "dma"
"""What ``load_rows`` may be instead of a number: see `NpuTile`."""
LoadRows = Annotated[int, WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": AS_THE_DMA}]})]

SCALED = "scaled"
"""What ``cache`` may have instead of int8 and int4: see `NpuTile`."""
CacheFormats = Annotated[
    tuple[DataType, ...],
    WithJsonSchema({"type": "array", "items": {"enum": [*(d.value for d in DataType), SCALED]}, "uniqueItems": True}),
]

ARRAY_FORMATS = (DataType.INT8, DataType.BF16, DataType.FP16, DataType.FP8_E4M3, DataType.FP8_E5M2)
"""Formats that an array's circuit may take its operands in."""
TILE_FORMATS = (*ARRAY_FORMATS, DataType.FP32)
"""Formats that a tile's elements may have; each tile has one, `NpuTile.circuit_format`."""
SHARED_FORMATS = (DataType.INT4, DataType.INT8, DataType.INT16)
"""Whole numbers that elements in fp32 are made to, at the edge of an array of such operands (`arch.shared`)."""
ROUNDED_FORMATS = (*SHARED_FORMATS, *(dtype for dtype in ARRAY_FORMATS if not dtype.is_integer))
"""Formats of an array's operands that wider elements are made to."""


class WeightFormats(Description):
    """Formats of fewer bits that an array takes its weights in; it makes operands of them as they enter.

    The layout of packed weights, their scales and minima, stands in `arch.packing`.
    """

    formats: tuple[DataType, ...] = Field(
        min_length=1,
        description="codes of packed weights: int4, int8 with fp16 scales; fp4_e2m1, fp8_e4m3, fp8_e5m2 in MX blocks",
    )
    minima: bool = Field(
        default=True,
        description="groups of int4 and int8 have a minimum beside their scale, and codes no sign (Q4_1, GPTQ)",
    )

    @field_validator("formats", mode="before")
    @classmethod
    def _one_format(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> WeightFormats:
        other = next((d for d in self.formats if not scale_bits(d)), None)
        if other is not None:
            known = ", ".join(d.value for d in (*INTEGER_CODES, *MX_ELEMENTS))
            raise rule_at("formats", f"must be among {known}", other.value)
        if len(set(self.formats)) < len(self.formats):
            raise rule_at("formats", "must not say a format twice", self.formats[0].value)
        if "minima" in self.model_fields_set and self.minima and not self.codes:
            raise rule_at("minima", "MX blocks have none; there is no int4 or int8 among the formats", "true")
        return self

    @property
    def codes(self) -> tuple[DataType, ...]:
        """Formats of whole numbers, with fp16 scales."""
        return tuple(d for d in self.formats if d in INTEGER_CODES)

    @property
    def blocks(self) -> tuple[DataType, ...]:
        """Formats of the elements of MX blocks."""
        return tuple(d for d in self.formats if d in MX_ELEMENTS)

    @property
    def has_minima(self) -> bool:
        """Whether groups of any format have minima."""
        return self.minima and bool(self.codes)


class SparseWeights(Description):
    """Patterns of zeros that an array's stationary operand may have; specified, no circuit.

    Kept weights and where they stood lie in memory and scratchpad. An array that ``skips`` has no rows of elements for
    zeros: an element is given the moving value that belongs to its weight. Another one makes zeros of them as they
    enter.
    """

    patterns: tuple[Pattern, ...] = Field(min_length=1, description="2of4: two of four in a column; block: whole ones")
    skips: bool = Field(default=True, description="zeros take no row of elements")

    @field_validator("patterns", mode="before")
    @classmethod
    def _one_pattern(cls, value: object) -> object:
        return list(map(pattern_of, value if isinstance(value, list | tuple) else [value]))

    @model_validator(mode="after")
    def _check(self) -> SparseWeights:
        if len(set(self.patterns)) < len(self.patterns):
            raise rule_at("patterns", "must not say a pattern twice", self.patterns[0])
        return self


@cache  # asked thousands of times by a search
def _circuit_format(operands: tuple[DataType, ...]) -> DataType | None:
    return operands[0] if operands[0] in ROUNDED_FORMATS else None


class SystolicArray(Description):
    """A grid of multiply-accumulate elements fed from its edges.

    Timing constants (``multiply_stages``, ``load_rows``) are read by the RTL and by ``sim.timing`` alike.
    """

    rows: int = Field(ge=1, le=1024, description="rows of elements, R")
    cols: int = Field(ge=1, le=1024, description="columns of elements, C")
    dataflow: Dataflow = Field(description="which operand stays in the elements")
    operands: tuple[DataType, ...] = Field(
        default=(DataType.INT8,), min_length=1, description="operand formats; circuits compute in the first"
    )
    multiply_stages: int = Field(
        default=1, ge=0, le=3, description="registers between multiplier and adder in each element"
    )
    add_stages: int = Field(
        default=0,
        ge=0,
        le=3,
        description="registers inside the adder of each element (weight and input stationary): a row adds so many "
        "cycles later after the one above",
    )
    load_rows: LoadRows = Field(
        default=1,
        ge=1,
        description="rows of the stationary operand that enter per cycle (weight and input stationary); in an npu tile "
        "`dma`: as few as take what the DMA brings in the narrowest format",
    )
    weights: WeightFormats | None = Field(
        default=None, description="packed formats of the stationary operand (weight stationary, int8, bf16 or fp16)"
    )
    cache: CacheFormats = Field(
        default=(),
        description="formats of fewer bits than elements that keys and values may be kept in (weight stationary): the "
        "operands' own before wider elements, fp8_e4m3, fp8_e5m2, and with scales int8, int4; in an npu tile `scaled`: "
        "those of the last two whose scales its vector unit can find",
    )
    sparsity: SparseWeights | None = Field(
        default=None, description="zeros that the stationary operand need not store (weight stationary); specified"
    )

    @field_validator("operands", "cache", mode="before")
    @classmethod
    def _one_operand(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> SystolicArray:
        if DataType.FP4_E2M1 in self.operands:
            raise rule_at("operands", "is the format of MX blocks alone, in weights.formats", DataType.FP4_E2M1.value)
        if self.rows % self.load_rows:
            most = gcd(self.load_rows, self.rows)
            rule = f"must divide rows: {self.load_rows} does not divide {self.rows}, {most} does"
            raise rule_at("load_rows", rule, str(self.load_rows))
        if self.load_rows > 1 and self.dataflow == "output_stationary":
            raise rule_at("load_rows", "is meant for weight and input stationary arrays, 1 here", str(self.load_rows))
        if self.add_stages and self.dataflow == "output_stationary":
            raise ValueError("add_stages is meant for weight and input stationary arrays, it must be 0 here")
        if self.sparsity is not None:
            if self.dataflow != "weight_stationary":
                raise rule_at("sparsity", "sparse weights are for weight stationary arrays", self.dataflow)
            if self.circuit_format is None:
                raise rule_at("sparsity", "sparse weights have a format of a circuit", self.operands[0].value)
        if self.weights is not None:
            if self.dataflow != "weight_stationary":
                raise rule_at("weights", "packed weights are for weight stationary arrays", self.dataflow)
            if self.circuit_format not in (DataType.INT8, DataType.BF16, DataType.FP16):
                rule = "packed weights are made to operands in int8, bf16 or fp16"
                raise rule_at("weights", rule, self.operands[0].value)
            other = next((d for d in self.weights.formats if d is not DataType.INT4), None)
            if self.circuit_format is DataType.INT8 and other is not None:
                raise rule_at("weights.formats", "an array in int8 has int4 packed, and int8 as it is", other.value)
            if self.load_rows & self.load_rows - 1:
                raise rule_at("load_rows", "must be a power of two where weights are packed", str(self.load_rows))
            if self.load_rows * self.cols % 2:
                raise rule_at(
                    "weights", "a beat of weights has an even number of values", str(self.load_rows * self.cols)
                )
        self._check_cache()
        return self

    def _check_cache(self) -> None:
        """What is kept narrower than elements is made to operands at the edge where weights enter."""
        if not self.cache:
            return
        own = self.circuit_format
        if self.dataflow != "weight_stationary":
            raise rule_at("cache", "a cache in formats of its own is for weight stationary arrays", self.dataflow)
        if own not in (DataType.BF16, DataType.FP16):
            rule = "keys and values in formats of their own are made to operands in bf16 or fp16"
            raise rule_at("cache", rule, self.operands[0].value)
        built = (own, *CACHE_CODES, *CACHE_SCALED)
        other = next((d for d in self.cache if d not in built), None)
        if other is not None:
            raise rule_at("cache", f"must be among {', '.join(d.value for d in built)}", other.value)
        twice = next((d for d in self.cache if self.cache.count(d) > 1), None)
        if twice is not None:
            raise rule_at("cache", "must not say a format twice", twice.value)
        if self.load_rows & self.load_rows - 1:
            rule = "must be a power of two where keys and values have formats of their own"
            raise rule_at("load_rows", rule, str(self.load_rows))

    @property
    def cache_codes(self) -> tuple[DataType, ...]:
        """Formats of keys and values that are made to operands as they enter the array."""
        return tuple(dtype for dtype in self.cache if dtype in CACHE_CODES)

    @property
    def cache_scaled(self) -> tuple[DataType, ...]:
        """Formats of keys and values that have scales (`arch.scaled`)."""
        return tuple(dtype for dtype in self.cache if dtype in CACHE_SCALED)

    @property
    def has_edge(self) -> bool:
        """Whether what stays may come in formats that are made to operands as they enter."""
        return self.weights is not None or bool(self.cache_codes or self.cache_scaled)

    @property
    def row_hop(self) -> int:
        """Cycles by which a row of elements is behind the one above it: sums take so many to pass an element."""
        return 1 + self.add_stages

    @property
    def output_latency(self) -> int:
        """Cycles from a beat entering the array to its sums leaving it."""
        return self.rows * self.row_hop + self.cols - 1 + self.multiply_stages

    @property
    def circuit_format(self) -> DataType | None:
        """What the array's own circuit is built for: its first format, of integers the widest to eight bits, or none.

        Of integers that are all longer it is int16.
        """
        return _circuit_format(self.operands)

    def accepts(self, dtype: DataType) -> bool:
        """Tell whether values of ``dtype`` can be operands: a listed format, or integers that fit in one."""
        return any(
            dtype == own or (dtype.is_integer and own.is_integer and dtype.bits <= own.bits) for own in self.operands
        )


class Scratchpad(Description):
    """Software-managed on-chip memory for operands and results."""

    capacity: Bytes = Field(description="of all banks together")
    banks: int = Field(default=4, ge=1, le=1024, description="each with a read and a write port of its own")

    @model_validator(mode="after")
    def _check(self) -> Scratchpad:
        if self.capacity < self.banks:
            raise rule_at("capacity", f"must be a byte or more for each of {self.banks} banks", f"{self.capacity} B")
        return self


class Accumulator(Description):
    """On-chip memory that holds and sums the array's results at full precision."""

    capacity: Bytes = Field(description="of the sums that it holds at once")


class VectorUnit(Description):
    """SIMD unit for everything that is not a matrix product."""

    lanes: int = Field(ge=1, le=65536, description="elements processed per cycle and pass")
    latency: int = Field(
        default=16, ge=1, le=1000, description="cycles from the last operand in to the last result out"
    )
    format: DataType | None = Field(
        default=None,
        description="of elements, fp32: wider than the operands that they are made to (integers of 4, 8 and 16 bits, "
        "bf16, fp16, fp8_e4m3, fp8_e5m2)",
    )
    transpose_rows: int = Field(
        default=1,
        ge=1,
        le=256,
        description="rows that are transposed together: held, then a column of them written a cycle; a power of two, "
        "of which as many count as divide lanes",
    )

    @model_validator(mode="after")
    def _check(self) -> VectorUnit:
        if self.transpose_rows & (self.transpose_rows - 1):
            raise rule_at("transpose_rows", "must be a power of two", self.transpose_rows)
        if self.format not in (None, DataType.FP32):
            raise rule_at("format", "must be fp32, or null", self.format.value)
        return self

    @property
    def together(self) -> int:
        """Rows that are transposed together: the largest power of two up to `transpose_rows` that divides `lanes`."""
        return gcd(self.transpose_rows, self.lanes)


class Dma(Description):
    """Mover between main memory and the scratchpad."""

    bytes_per_cycle: int = Field(default=64, ge=1, le=65536, description="width of all data buses together")
    port_bytes: int = Field(default=128, ge=1, le=128, description="widest AXI bus; a wider DMA has several")
    outstanding: int = Field(default=64, ge=1, le=1024, description="transfers of a direction that may await their end")
    decompression: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="bytes a cycle of a decompressor of weights on the way to the scratchpad; specified, no circuit",
    )
    id_bits: int = Field(default=4, ge=1, le=32, description="width of the AXI buses' identifiers in the Verilog")


class Sequencer(Description):
    """Fetches, decodes and dispatches the Program into one queue per unit."""

    issue_cycles: int = Field(default=4, ge=1, le=1000, description="cycles to dispatch one macro-instruction")
    loop_cycles: int = Field(default=1, ge=1, le=1000, description="cycles of a loop start or back-edge")
    queue_depth: int = Field(default=8, ge=1, le=1024, description="instructions waiting in front of each unit")
    program_words: int = Field(default=1024, ge=2, le=2**20, description="instructions that the program memory holds")


class SystolicTile(Description):
    """A bare array with valid/ready operand streams."""

    kind: Literal["systolic"] = Field(description="a bare array with operand streams")
    array: SystolicArray = Field(description="the systolic array")

    @model_validator(mode="after")
    def _check(self) -> SystolicTile:
        if self.array.weights is not None:
            raise rule_at("array.weights", "packed weights are for the array of an npu tile", self.kind)
        if self.array.cache:
            raise rule_at("array.cache", "keys and values are those of an npu tile", self.kind)
        return self


def rows_as_the_dma(array: SystolicArray, weights: WeightFormats | None, dma: Dma) -> int:
    """Rows of the narrowest weights that take a cycle of the DMA: a power of two that divides the array's rows.

    Where none is enough it is the largest there is. An array whose sums stay has no such port: 1.
    """
    if array.dataflow == "output_stationary":
        return 1
    formats = (array.circuit_format or array.operands[0], *(weights.formats if weights is not None else ()))
    bits = array.cols * min(each.bits for each in formats)
    rows = 1
    while rows * bits < 8 * dma.bytes_per_cycle and array.rows % (2 * rows) == 0:
        rows *= 2
    return rows


def misfit_of_scales(array: SystolicArray, lanes: int, dtype: DataType) -> tuple[str, str, int] | None:
    """Why a tile has no circuit for keys and values with scales in a format, with the key and what that is; or none."""
    cols, at_once = array.cols, array.load_rows
    if lanes % cols or lanes & lanes - 1:
        rule = (
            "a line of the vector unit is whole rows of the array, and a power of two, where keys and values are kept "
            f"in int8 or int4, and so many values share a scale as a row has ({cols} columns)"
        )
        return "vector.lanes", rule, lanes
    if dtype is DataType.INT4 and at_once % 2:
        return (
            "array.load_rows",
            "must be even where keys are kept in int4, of which two rows share their bytes",
            at_once,
        )
    if cols % at_once or cols < 2:
        rule = f"columns that share a scale are whole beats of {at_once} where keys are kept in int8 or int4"
        return "array.cols", rule, cols
    return None


class NpuTile(Description):
    """Sequencer, DMA, scratchpad, accumulator, systolic array and vector unit.

    ``array.load_rows: dma`` gives the array's load port as many rows as take what the DMA brings in a cycle, in the
    narrowest format of weights; it is read as that number (`rows_as_the_dma`). ``scaled`` among the formats of
    ``array.cache`` is int8 and int4, as far as array and vector unit have a circuit for them (`misfit_of_scales`).
    """

    kind: Literal["npu"] = Field(description="array, vector unit, DMA and sequencer around on-chip memories")
    array: SystolicArray = Field(description="the systolic array")
    scratchpad: Scratchpad = Field(description="software-managed on-chip memory for operands and results")
    accumulator: Accumulator = Field(description="on-chip memory that sums the array's results at full precision")
    vector: VectorUnit = Field(description="SIMD unit for everything that is not a matrix product")
    dma: Dma = Field(default=Dma(), description="mover between main memory and the scratchpad")
    sequencer: Sequencer = Field(default=Sequencer(), description="reads the program and hands it to the units")

    @model_validator(mode="before")
    @classmethod
    def _load_port(cls, data: Any) -> Any:
        """Make a number of ``load_rows: dma``, and formats of ``scaled``."""
        array = data.get("array") if isinstance(data, dict) else None
        if not isinstance(array, dict):
            return data
        if array.get("load_rows") == AS_THE_DMA:
            try:
                plain = SystolicArray.model_validate(array | {"load_rows": 1, "weights": None, "cache": ()})
                packed = WeightFormats.model_validate(array["weights"]) if array.get("weights") is not None else None
                dma = Dma.model_validate(data.get("dma", {}))
                rows = rows_as_the_dma(plain, packed, dma)
            except ValidationError:
                rows = 1  # what is wrong is found, and said, by the fields themselves
            array = array | {"load_rows": rows}
        cache = [array["cache"]] if isinstance(array.get("cache"), str) else array.get("cache")
        if isinstance(cache, list | tuple) and SCALED in cache:
            try:
                plain = SystolicArray.model_validate(array | {"weights": None, "cache": ()})
                lanes = VectorUnit.model_validate(data.get("vector", {})).lanes
                made = [dtype for dtype in CACHE_SCALED if misfit_of_scales(plain, lanes, dtype) is None]
            except ValidationError:
                made = []
            array = array | {
                "cache": [*(each for each in cache if each != SCALED), *(d.value for d in made * cache.count(SCALED))]
            }
        return data | {"array": array}

    @model_validator(mode="after")
    def _check(self) -> NpuTile:
        if self.vector.format is not None:
            if self.array.dataflow != "weight_stationary":
                rule = "elements wider than operands are for weight stationary arrays"
                raise rule_at("vector.format", rule, self.array.dataflow)
            if self.array.circuit_format not in ROUNDED_FORMATS:
                rule = f"elements are made to operands in {', '.join(ROUNDED_FORMATS)}"
                raise rule_at("vector.format", rule, self.array.operands[0].value)
            at_once = self.array.load_rows * self.array.cols
            if self.array.circuit_format is DataType.INT4 and at_once % 2:
                raise rule_at("array.cols", "a beat of weights in int4 has an even number of values", str(at_once))
        elif self.array.weights is not None and self.array.circuit_format is DataType.INT8:
            rule = "packed weights before an array in int8 are for elements in fp32 (vector.format)"
            raise rule_at("array.weights", rule, self.array.operands[0].value)
        if self.array.circuit_format in self.array.cache and not self.rounds:
            rule = "keys and values in the operands' own format are for wider elements (vector.format)"
            raise rule_at("array.cache", rule, self.array.operands[0].value)
        for dtype in self.array.cache_scaled:
            if found := misfit_of_scales(self.array, self.vector.lanes, dtype):
                raise rule_at(found[0], found[1], str(found[2]))
        return self

    @property
    def circuit_format(self) -> DataType:
        """The format of elements in the tile's circuits: the vector unit's own, the array's, or its first."""
        return self.vector.format or self.array.circuit_format or self.array.operands[0]

    @property
    def built(self) -> bool:
        """Whether there are circuits for its formats."""
        return self.shares or self.array.circuit_format in TILE_FORMATS

    @property
    def rounds(self) -> bool:
        """Whether elements are wider than the array's operands, and rounded as they enter it."""
        return self.vector.format is not None

    @property
    def shares(self) -> bool:
        """Whether elements in floating point enter the array as whole numbers that share an exponent."""
        return self.rounds and self.array.circuit_format in SHARED_FORMATS

    @property
    def weight_formats(self) -> tuple[DataType, ...]:
        """Formats of weights in memory that are not that of elements."""
        packed = self.array.weights.formats if self.array.weights is not None else ()
        own = self.array.circuit_format
        return (*packed, own) if self.rounds and own is not None else packed

    @property
    def stationary_formats(self) -> tuple[DataType, ...]:
        """Formats of what stays in the array that are not that of elements: weights, and keys and values."""
        weights, cache = self.weight_formats, (*self.array.cache_codes, *self.array.cache_scaled)
        return (*weights, *(dtype for dtype in cache if dtype not in weights))

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand or a result in local memory, as the circuits read it."""
        return -(-self.circuit_format.bits // 8)

    @property
    def parameter_format(self) -> DataType:
        """The format that parameters of vector functions lie in: the circuits', int8 of integers and without them."""
        built = self.vector.format or self.array.circuit_format
        return built if built is not None and self.array.circuit_format and not built.is_integer else DataType.INT8

    @property
    def parameter_line(self) -> int:
        """Bytes of a line of parameters: an element for each lane."""
        return self.vector.lanes * self.parameter_format.bits // 8


Tile = Annotated[SystolicTile | NpuTile | PimTile, Field(discriminator="kind")]

MemoryKind = Literal[
    "sram", "ddr4", "ddr5", "lpddr5", "lpddr5x", "gddr6", "hbm2", "hbm2e", "hbm3", "hbm3e", "cxl", "flash"
]


Held = Literal["parameters", "cache", "activations"]
"""What a workload keeps in memory: parameters; keys and values; operands and results."""
HELD: tuple[Held, ...] = ("parameters", "cache", "activations")

CXL_WAYS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Devices that a CXL host bridge can interleave over (CXL 3.0, section 8.2.4.20.7, HDM decoder ways)."""
CXL_GRANULARITY = tuple(256 << n for n in range(7))
"""Interleave granularities of a CXL HDM decoder: 256 B to 16 KiB."""
DEFAULT_INTERLEAVE = 256


class Memory(Description):
    """One level of the memory hierarchy outside the tile, with a fixed latency and bandwidth.

    With `dram`, each port is one channel of that DRAM. What a stream gets of its pins, and its latency, then follow
    from its commands (`sim.dram.memory.effective`); `bandwidth` is that of the path to it, the pins' when absent, and
    `latency` that of the path alone.

    A level may be several equal `devices`, each with several `ports` (channels) that share the device's bandwidth
    evenly. Addresses are striped: each `interleave` bytes lie on the next port of the next device, so a row shorter
    than a whole stripe is served by fewer ports and takes as long as the busiest of them.
    """

    kind: MemoryKind = Field(description="sets energies, and CXL's rules of striping; not the timing")
    capacity: Bytes = Field(description="of one device")
    bandwidth: Bandwidth = Field(default=0, description="reads and writes together, of one device")
    latency: Latency = Field(description="from request to first data, and from last data to acknowledge")
    dram: NamedDram | None = Field(
        default=None, description="what lies behind each port: one channel, a description or a library name"
    )
    access_bytes: int = Field(default=64, ge=1, le=65536, description="smallest transfer; shorter rows are rounded up")
    energy: Energy | None = Field(default=None, description="per byte moved; the technology table's value when absent")
    ports: int = Field(default=1, ge=1, le=4096, description="channels of a device that work in parallel")
    devices: int = Field(default=1, ge=1, le=4096, description="equal devices that the addresses are striped over")
    interleave: Bytes | None = Field(
        default=None, description="bytes that lie on one port before the next takes over; 256 B when absent"
    )
    holds: tuple[Held, ...] = Field(default=HELD, min_length=1, description="what may be placed here")

    @model_validator(mode="after")
    def _check(self) -> Memory:
        if self.dram is not None:
            self._check_dram(self.dram)
        elif "bandwidth" not in self.model_fields_set:
            raise ValueError("bandwidth is missing; only a level with dram may leave it out")
        if self.interleave is not None:
            if self.channels == 1:
                raise ValueError("interleave is for a level with several ports or devices")
            if self.interleave % self.access_bytes:
                raise ValueError(f"interleave must be a multiple of access_bytes, {self.access_bytes} B")
        if self.kind == "cxl" and self.devices > 1:
            if self.devices not in CXL_WAYS:
                ways = ", ".join(map(str, CXL_WAYS))
                raise ValueError(f"devices: CXL memory is striped over {ways} devices, not over {self.devices}")
            if self.stripe not in CXL_GRANULARITY:
                raise ValueError(
                    f"interleave: CXL memory is striped by 256 B to 16 KiB, a power of two, not {self.stripe} B"
                )
        return self

    def _check_dram(self, dram: Dram) -> None:
        o = dram.organization
        if o.channels != 1:
            raise ValueError(f"dram.organization describes one channel; give their number as ports ({o.channels})")
        capacity, peak = self.ports * o.capacity, int(self.ports * dram.peak_bandwidth)
        if self.capacity != capacity:
            raise ValueError(
                f"capacity must be that of the ports' DRAM, {self.ports} x {format_bytes(o.capacity)} = "
                f"{format_bytes(capacity)} (got {format_bytes(self.capacity)})"
            )
        if self.access_bytes % o.request_bytes:
            raise ValueError(
                f"access_bytes must be a multiple of the DRAM's burst of {o.request_bytes} bytes "
                f"(got {self.access_bytes})"
            )
        if "bandwidth" not in self.model_fields_set:
            object.__setattr__(self, "bandwidth", peak)
        elif self.bandwidth > peak:
            raise ValueError(
                f"bandwidth must be at most {format_si(peak, 'B/s')}, what the DRAM's pins move "
                f"(got {format_si(self.bandwidth, 'B/s')})"
            )

    @property
    def channels(self) -> int:
        """Ports of all devices together."""
        return self.ports * self.devices

    @property
    def stripe(self) -> int:
        """Bytes on one port before the next takes over; all of them where there is one port."""
        if self.interleave is not None:
            return self.interleave
        return -(-DEFAULT_INTERLEAVE // self.access_bytes) * self.access_bytes

    @property
    def total_capacity(self) -> int:
        """Bytes of all devices."""
        return self.capacity * self.devices

    @property
    def total_bandwidth(self) -> int:
        """Bytes per second of all devices."""
        return self.bandwidth * self.devices


FASTEST_CLOCK = {"45nm": 5_200_000_000, "7nm": 5_200_000_000}
"""Hz of the fastest product of each node: IBM's z196 (45 nm, 2010) ships at 5.2 GHz, its 7 nm successor Telum (2021)
at "above 5 GHz", 5.2 GHz in the z16. Arithmetic is deeper pipelined there than in an array's element: a bound, no goal.
Sources: reports of IBM's talk at Hot Chips 22 (OSNews, 26 August 2010: 5.2 GHz, 45 nm SOI) and of Telum's at Hot Chips
33 (Ars Technica, 2021: 7 nm, above 5 GHz); the z16's 5.2 GHz is Wikipedia's ("IBM Telum"), IBM's own not verified.
"""


class Chip(Description):
    """A chip: identical tiles that share a memory hierarchy, nearest level first."""

    LATER: ClassVar[dict[str, str]] = {
        "noc": "a network on the chip; tiles share the memory's bandwidth evenly, without a network between them",
        "links": "links of a lone chip; describe a system (kind: system), whose link joins its chips",
    }

    kind: Literal["chip"] = Field(description="what is described")
    name: Name = Field(description="letters, digits, . _ -; also that of files and of Verilog modules")
    description: str = Field(default="", description="in words, for people")
    clock: Frequency = Field(description="of everything on the chip")
    technology: Literal["45nm", "7nm"] = Field(default="7nm", description="energy table of arch.technology")
    tile: Tile = Field(description="what computes: a systolic, npu or pim tile")
    tile_count: int = Field(default=1, ge=1, le=4096, description="identical tiles that share every operator")
    tiles_join: bool = Field(
        default=False,
        description="the tiles can also work side by side as one, with arrays and buffers of all, where that is faster",
    )
    memory: dict[Name, Memory] = Field(default={}, description="levels from nearest to farthest")
    pim: PimTile | None = Field(default=None, description="banks of the nearest memory that compute")

    @model_validator(mode="after")
    def _check(self) -> Chip:
        fastest = FASTEST_CLOCK[self.technology]
        if self.clock > fastest:
            raise rule_at(
                "clock",
                f"must be at most {format_si(fastest, 'Hz')}, the fastest product of {self.technology}",
                format_si(self.clock, "Hz"),
            )
        if self.tiles_join and (self.tile_count == 1 or not isinstance(self.tile, NpuTile)):
            raise rule_at("tiles_join", "joins several npu tiles (tile_count, tile.kind)", "true")
        if isinstance(self.tile, PimTile):
            self._check_pim(self.tile)
            if self.pim is not None or self.tile_count != 1:
                raise ValueError("a chip with a pim tile has one, and no pim beside it")
        elif self.pim is not None:
            self._check_pim(self.pim)
            nearest, memory = next(iter(self.memory.items()), (None, None))
            if memory is None:
                raise ValueError("pim computes in the nearest memory; give one")
            capacity = self.pim.channels * self.pim.dram.organization.capacity
            if memory.capacity != capacity:
                raise ValueError(
                    f"memory.{nearest}.capacity must be that of the pim channels, {format_bytes(capacity)}"
                )
            peak = self.pim.channels * self.pim.dram.peak_bandwidth
            if memory.bandwidth > peak:
                raise ValueError(
                    f"memory.{nearest}.bandwidth must be at most {format_si(peak, 'B/s')}, what the pim channels' pins "
                    "move"
                )
        if self.tile.kind == "npu" and not self.memory:
            raise ValueError("a chip with an npu tile needs at least one memory level")
        for what in HELD:
            if self.memory and not any(what in memory.holds for memory in self.memory.values()):
                raise ValueError(f"some memory level must hold {what} (memory.NAME.holds)")
        if len(self.memory) > 1 and self.level_bases[-1] >= 1 << ADDRESS_BITS:
            raise ValueError(f"the memory levels before the last are more than {ADDRESS_BITS} bits can address")
        return self

    def _check_pim(self, pim: PimTile) -> None:
        if abs(self.clock * pim.dram.clock_period - 10**12) > 10**12 // 1000:
            raise ValueError(
                f"clock must be that of the pim channels' DRAM, {format_si(10**12 / pim.dram.clock_period, 'Hz')}"
            )

    def joined(self) -> Chip:
        """The chip with its npu tiles as one: arrays side by side, buffers, lanes and data buses put together."""
        tile, count = self.tile, self.tile_count
        if count == 1 or not isinstance(tile, NpuTile):
            return self
        wide = tile.model_copy(
            update={
                "array": tile.array.model_copy(update={"cols": tile.array.cols * count}),
                "scratchpad": tile.scratchpad.model_copy(update={"capacity": tile.scratchpad.capacity * count}),
                "accumulator": tile.accumulator.model_copy(update={"capacity": tile.accumulator.capacity * count}),
                "vector": tile.vector.model_copy(update={"lanes": tile.vector.lanes * count}),
                "dma": tile.dma.model_copy(update={"bytes_per_cycle": tile.dma.bytes_per_cycle * count}),
            }
        )
        return self.model_copy(update={"tile": wide, "tile_count": 1, "tiles_join": False})

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical description: stands in the Verilog sidecar, in results and in cache keys."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def peak_macs(self) -> int:
        """Multiply-accumulates per cycle of the whole chip (0 for a tile without an array)."""
        if isinstance(self.tile, PimTile):
            return self.tile.peak_macs
        return self.tile.array.rows * self.tile.array.cols * self.tile_count

    @property
    def nearest(self) -> Memory:
        """The memory level that is nearest to the tiles."""
        return next(iter(self.memory.values()))

    @property
    def level_bases(self) -> tuple[int, ...]:
        """First address of each memory level: the levels lie one behind the other, the nearest at 0."""
        bases, end = [], 0
        for memory in self.memory.values():
            bases.append(end)
            end += -(-memory.total_capacity // LEVEL_ALIGNMENT) * LEVEL_ALIGNMENT
        return tuple(bases)

    def level_of(self, address: int) -> int:
        """Number of the memory level that holds ``address``, 0 for the nearest; the last one has no end."""
        return sum(base <= address for base in self.level_bases[1:])

    @property
    def beat_interval(self) -> int:
        """`interval_of` the nearest memory."""
        return self.interval_of(self.nearest)

    def path_bandwidth(self, memory: Memory) -> int:
        """Bytes per second that reach a memory: its own bandwidth, or what the data buses of all tiles carry."""
        return min(memory.total_bandwidth, self.dma_bandwidth)

    @property
    def dma_bandwidth(self) -> int:
        """Bytes per second that the data buses of all npu tiles carry."""
        assert isinstance(self.tile, NpuTile)
        return self.clock * self.tile_count * self.tile.dma.bytes_per_cycle

    def interval_of(self, memory: Memory) -> int:
        """Cycles between beats of one tile's data bus, in 1/`INTERVAL_ONE`: its share of a memory.

        At least one cycle; rounded up, so that no tile ever takes more than its share.
        """
        wanted = self.dma_bandwidth * INTERVAL_ONE
        return max(-(-wanted // memory.total_bandwidth), INTERVAL_ONE)

    def seen_from(self, level: str) -> Chip:
        """The same chip with nothing but one of its memory levels."""
        return self.model_copy(update={"memory": {level: self.memory[level]}})

    def cycles(self, picoseconds: int) -> int:
        """Clock cycles that cover a duration, rounded up."""
        return -(-picoseconds * self.clock // 10**12)


def load_chip(name: str | Document, overrides: list[tuple[str, str]] | None = None) -> Chip:
    """Read a chip from a file or the library, or as described, with ``--set`` overrides applied.

    Raises
    ------
    LoomError
        When there is no such file, or the description breaks a rule.
    """
    document = find_document(name, LIBRARY, "chip")
    document.override(overrides or [])
    document.expect_kind(["chip"])
    return document.validate(Chip)


def new_chip(name: str, base: str) -> str:
    """Text of a description with every key of a chip, each with its meaning; its values are those of another chip.

    Parameters
    ----------
    name
        What it is called.
    base
        The other chip: a file or a library name.

    Raises
    ------
    LoomError
        When there is no such chip, or the name is none that a chip may have.
    """
    from siliconloom.arch.template import commented

    load_chip(base, [("name", name)])
    document = find_document(base, LIBRARY, "chip")
    heading = (
        f"{name}: a chip like {base}. Lines with ## say what a key means. A key behind one # is not set, and shows its "
        "default: take the # and the blank away to set it. Quantities have units: 256 KiB, 900 GB/s, 1.2 GHz, 500 ns."
    )
    return commented(Chip, {**document.data, "name": name}, heading)

"""Tiles of each kind, and what stands around an array: scratchpad, accumulator, vector unit, DMA and sequencer."""

from __future__ import annotations

from math import gcd
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import Field, ValidationError, model_validator

from siliconloom.arch.array import (
    AS_THE_DMA,
    ROUNDED_FORMATS,
    SCALED,
    SHARED_FORMATS,
    TILE_FORMATS,
    SystolicArray,
    WeightFormats,
)
from siliconloom.arch.datatype import CACHE_SCALED, DataType
from siliconloom.arch.document import Description, Name, rule_at
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.pim import RESULT_BYTES, PimTile
from siliconloom.arch.quantity import Bytes, format_bytes
from siliconloom.arch.timing import MOST_SUM_STAGES, vector_stages
from siliconloom.arch.vector import VectorCost, VectorFunction, vector_cost
from siliconloom.arch.word import LOCAL_BITS, LOCAL_BYTES

WITHIN_REACH = f"a program's addresses reach {format_bytes(LOCAL_BYTES)}"


class Scratchpad(Description):
    """Software-managed on-chip memory for operands and results."""

    capacity: Bytes = Field(description=f"of all banks together; {WITHIN_REACH}")
    banks: int = Field(default=4, ge=1, le=1024, description="each with a read and a write port of its own")

    @model_validator(mode="after")
    def _check(self) -> Scratchpad:
        if self.capacity < self.banks:
            raise rule_at("capacity", f"must be a byte or more for each of {self.banks} banks", f"{self.capacity} B")
        return self


class Accumulator(Description):
    """On-chip memory that holds and sums the array's results at full precision."""

    capacity: Bytes = Field(description=f"of the sums that it holds at once; {WITHIN_REACH}")


class FunctionCost(Description):
    """What one function of a vector unit takes, where that is not what our circuit takes.

    A slot is a block of ``lanes`` columns of ``sublanes`` rows. What is not said is as in the circuit.
    """

    passes: int | None = Field(default=None, ge=1, le=4096, description="cycles on each slot, of all passes together")
    row_cycles: int = Field(
        default=0, ge=0, le=65536, description="cycles on each group of sublanes rows beside those on its slots"
    )
    kernels: int = Field(default=1, ge=1, le=64, description="programs that compute it, launched one after the other")


class VectorUnit(Description):
    """SIMD unit for everything that is not a matrix product.

    It takes a slot a cycle and pass: ``lanes`` columns of ``sublanes`` rows, so that fewer columns, or rows that are
    left over, take as long as a whole slot. ``costs`` says what functions take where that is not what our circuit
    takes; a unit with either has no RTL.
    """

    lanes: int = Field(ge=1, le=65536, description="columns of a slot, one of which is processed per cycle and pass")
    sublanes: int = Field(default=1, ge=1, le=256, description="rows of a slot; no RTL of more than one")
    latency: int = Field(
        default=16,
        ge=1,
        le=1000,
        description="cycles from the last operand in to the last result out; in RTL those beyond 15 are registers",
    )
    sum_stages: int = Field(
        default=1,
        ge=1,
        le=MOST_SUM_STAGES,
        description="cycles that an addition takes in floating point: a row is summed in so many partial sums, block "
        "after block in turn, and a weighted sum takes so many cycles for each weight",
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
    costs: dict[Name, FunctionCost] = Field(
        default={}, description="what functions take, by their names, where it is not what the circuit takes; no RTL"
    )

    @model_validator(mode="after")
    def _check(self) -> VectorUnit:
        for name, cost in self.costs.items():
            if name not in VectorFunction:
                near = nearest_name(name, [function.value for function in VectorFunction])
                raise rule_at(f"costs.{name}", "no vector function" + (f"; did you mean {near}?" if near else ""), name)
            spec = VectorFunction(name).spec
            if spec.transposes or spec.weighs:
                what = "transpose_rows says what a transpose takes" if spec.transposes else "a cycle for each weight"
                raise rule_at(f"costs.{name}", f"not supported: a cost of {name}; {what}", cost)
        if self.transpose_rows & (self.transpose_rows - 1):
            raise rule_at("transpose_rows", "must be a power of two", self.transpose_rows)
        if self.sum_stages & (self.sum_stages - 1):
            raise rule_at("sum_stages", "must be a power of two", self.sum_stages)
        if self.format not in (None, DataType.FP32):
            raise rule_at("format", "must be fp32, or null", self.format.value)
        return self

    def cost_of(self, function: VectorFunction, dtype: DataType = DataType.INT8) -> VectorCost:
        """What ``function`` takes of this unit in a format: what the circuit takes, or what ``costs`` says."""
        circuit, stated = self.circuit_cost(function, dtype), self.costs.get(function.value)
        if stated is None:
            return circuit
        passes = circuit.passes if stated.passes is None else stated.passes
        return replace(circuit, passes=passes, row_cycles=stated.row_cycles, kernels=stated.kernels)

    def circuit_cost(self, function: VectorFunction, dtype: DataType = DataType.INT8) -> VectorCost:
        """What the circuit takes for ``function`` in a format."""
        cost = vector_cost(function, dtype)
        return replace(cost, apart=self.sum_stages) if cost.weighs and not dtype.is_integer else cost

    def __hash__(self) -> int:
        sizes = self.lanes, self.sublanes, self.latency, self.sum_stages, self.format, self.transpose_rows
        return hash((*sizes, *self.costs.items()))

    @property
    def slot(self) -> int:
        """Elements of a slot."""
        return self.lanes * self.sublanes

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
    launch_cycles: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="cycles of launching an operator's program, when all results before it are in memory; 0: operators "
        "overlap, as they do on the RTL",
    )
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
        if self.array.accumulate_stages > 1:
            raise rule_at("array.accumulate_stages", "an accumulator is that of an npu tile", self.kind)
        return self


def _sides(array: dict[str, Any]) -> dict[str, Any]:
    """What a description says of an array beside its ways in and its pipeline: other keys may need those."""
    return {key: array[key] for key in ("rows", "cols", "dataflow", "operands") if key in array}


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
    pim: PimTile | None = Field(
        default=None, description="a channel of memory that computes, driven by the program, beside main memory"
    )

    def __hash__(self) -> int:
        sizes = self.array.rows, self.array.cols, self.array.load_rows, self.scratchpad.capacity
        return hash((*sizes, self.accumulator.capacity, self.vector.lanes, self.dma.bytes_per_cycle))

    @model_validator(mode="before")
    @classmethod
    def _load_port(cls, data: Any) -> Any:
        """Make a number of ``load_rows: dma``, and formats of ``scaled``."""
        array = data.get("array") if isinstance(data, dict) else None
        if not isinstance(array, dict):
            return data
        if array.get("load_rows") == AS_THE_DMA:
            try:
                plain = SystolicArray.model_validate(_sides(array))
                packed = WeightFormats.model_validate(array["weights"]) if array.get("weights") is not None else None
                dma = Dma.model_validate(data.get("dma", {}))
                rows = rows_as_the_dma(plain, packed, dma)
            except ValidationError:
                rows = 1  # what is wrong is found, and said, by the fields themselves
            array = array | {"load_rows": rows}
        cache = [array["cache"]] if isinstance(array.get("cache"), str) else array.get("cache")
        if isinstance(cache, list | tuple) and SCALED in cache:
            try:
                plain = SystolicArray.model_validate(_sides(array) | {"load_rows": array.get("load_rows", 1)})
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
        if self.array.element == "digit_serial":
            rule = "digit_serial elements are for a systolic tile: no program knows how long their operands take"
            raise rule_at("array.element", rule, self.kind)
        if self.array.depth > 1:
            rule = "several products a cycle in an element are for a systolic tile, 1 here"
            raise rule_at("array.depth", rule, str(self.array.depth))
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
        for key, stages in (
            ("vector.sum_stages", self.vector.sum_stages),
            ("array.accumulate_stages", self.array.accumulate_stages),
        ):
            if stages > 1 and self.circuit_format.is_integer:
                rule = "sums of integers take a cycle: more stages are for elements in floating point"
                raise rule_at(key, rule, self.circuit_format.value)
        latency, least = self.vector.latency, vector_stages(self.vector.sum_stages)
        if self.vector.sum_stages > 1 and latency < least:
            raise rule_at("vector.sum_stages", f"so many are within a latency of {least} or more", f"latency {latency}")
        if self.pim is not None:
            self._check_channel(self.pim)
        for name, capacity in (("scratchpad", self.scratchpad.capacity), ("accumulator", self.accumulator.capacity)):
            if capacity > LOCAL_BYTES:
                rule = (
                    f"must be at most {format_bytes(LOCAL_BYTES)}: local addresses of programs have {LOCAL_BITS} bits"
                )
                raise rule_at(f"{name}.capacity", rule, format_bytes(capacity))
        for dtype in self.array.cache_scaled:
            if found := misfit_of_scales(self.array, self.vector.lanes, dtype):
                raise rule_at(found[0], found[1], str(found[2]))
        return self

    def _check_channel(self, pim: PimTile) -> None:
        """What of a channel a tile's unit can drive."""
        burst = pim.dram.organization.request_bytes
        powers = {
            "pim.dram.organization": pim.banks,
            "pim.dram.organization.columns": pim.row_columns,
            "pim.global_buffer": pim.global_buffer,
        }
        if self.circuit_format not in (DataType.BF16, DataType.FP32) or DataType.BF16 not in pim.operands:
            rule = "a channel that computes is for elements in bf16 or fp32, and multiplies in bf16"
            raise rule_at("pim.operands", rule, f"{self.circuit_format.value}, {pim.operands[0].value}")
        if pim.channels != 1:
            raise rule_at("pim.channels", "a tile drives one channel", pim.channels)
        apart = {"dual_row_buffer": pim.dual_row_buffer, "activations": pim.activations == "separate"}
        if key := next((name for name, asked in apart.items() if asked), None):
            rule = "a tile has its channel transfer or compute, one after the other: nothing is to be kept apart"
            raise rule_at(f"pim.{key}", rule, str(getattr(pim, key)).lower())
        for key, value in powers.items():
            if value & (value - 1):
                raise rule_at(key, "banks, bursts of a row and bytes of the buffer are powers of two", value)
        if pim.banks * RESULT_BYTES % burst:
            rule = f"sums of all banks, {RESULT_BYTES} bytes each, are whole bursts of {burst} bytes"
            raise rule_at("pim.dram.organization", rule, f"{pim.banks} banks")

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

"""A systolic array: its sides, dataflow and pipeline, and the formats of its operands, packed weights and cache."""

from __future__ import annotations

from functools import cache
from math import gcd
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from siliconloom.arch import timing
from siliconloom.arch.datatype import (
    CACHE_CODES,
    CACHE_SCALED,
    INTEGER_CODES,
    MX_ELEMENTS,
    DataType,
    pattern_of,
    scale_bits,
)
from siliconloom.arch.document import Description, rule_at
from siliconloom.arch.quantity import Energy

Pattern = Literal["2of4", "block"]
Dataflow = Literal["weight_stationary", "output_stationary", "input_stationary"]
Element = Literal["multiply_add", "carry_save", "compressor", "digit_serial"]
RESOLVED_BITS = 8
"""Bits of a sum that an array of carry-save elements resolves in a cycle, where results leave it."""
SUM_BITS, LONG_SUM_BITS = 32, 48
"""Of a sum in whole numbers; of one of products of 32 bits, of which 2^16 are summed without a wrap: an accumulator of
a DSP is as wide (UG579)."""
MOST_UNPACK_STAGES = 8
"""Registers at most in the way of packed weights, and of keys and values in formats of theirs, into the array."""
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


class ArrayEnergy(Description):
    """What an array's elements take, in place of the technology's table: as ``loom synth --power`` measures it."""

    product: Energy = Field(description="of a product and its sum, with the registers that they go through")
    clock: Energy = Field(description="of an element's registers in every cycle, at work or not")


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
    accumulate_stages: int = Field(
        default=1,
        ge=1,
        le=timing.MOST_SUM_STAGES,
        description="cycles in which an npu tile adds sums in floating point to those that its accumulator holds: 1, 2 "
        "or 4; no sums come before those that they may be added to are there",
    )
    unpack_stages: int = Field(
        default=0,
        ge=0,
        le=MOST_UNPACK_STAGES,
        description="registers where packed weights, and keys and values in formats of their own, are made to operands:"
        " whatever stays enters the array so many cycles later",
    )
    load_rows: LoadRows = Field(
        default=1,
        ge=1,
        description="rows of the stationary operand that enter per cycle (weight and input stationary); in an npu tile "
        "`dma`: as few as take what the DMA brings in the narrowest format",
    )
    load_port: Literal["own", "shared"] = Field(
        default="own",
        description="shared: the stationary operand enters where the moving one does, so that no tile of it loads "
        "behind another one's beats (weight and input stationary); no RTL",
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
    element: Element = Field(
        default="multiply_add",
        description="how an element sums products of whole numbers: multiply_add: a multiplier and an adder; "
        "carry_save: the sum kept as two numbers, resolved where it leaves; compressor: two for every weight of digits "
        "(output stationary); digit_serial: a digit of A that is not zero a cycle (output stationary)",
    )
    depth: int = Field(
        default=1,
        ge=1,
        le=64,
        description="products that an element sums per cycle (output stationary): a cube has several, a tree of "
        "multipliers has one row, a column of elements one column",
    )
    energy: ArrayEnergy | None = Field(
        default=None, description="of products, in the format of the elements; the technology table's when absent"
    )
    operand_sigma: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="standard deviation of the operands A, of a rounded normal distribution, by which cycles of "
        "digit_serial elements are expected; null: all values alike. For timing only",
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
        if self.accumulate_stages & (self.accumulate_stages - 1):
            raise rule_at("accumulate_stages", "must be a power of two", str(self.accumulate_stages))
        if self.unpack_stages and not self.has_edge:
            rule = "there are no packed weights, and no keys and values in formats of their own, 0 here"
            raise rule_at("unpack_stages", rule, str(self.unpack_stages))
        if self.load_port == "shared" and self.dataflow == "output_stationary":
            raise rule_at("load_port", "is meant for weight and input stationary arrays, own here", self.load_port)
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
        self._check_element()
        return self

    def _check_element(self) -> None:
        """Elements other than one multiplier and its adder are of whole numbers, and most keep their sums."""
        stays = self.dataflow == "output_stationary"
        if self.depth > 1 and not stays:
            raise rule_at("depth", "several products a cycle are for output stationary arrays, 1 here", str(self.depth))
        if self.operand_sigma is not None and self.element != "digit_serial":
            raise rule_at("operand_sigma", "is of the operands of digit_serial elements", str(self.operand_sigma))
        if (self.element, self.depth) == ("multiply_add", 1):
            return
        if self.circuit_format is None or not self.circuit_format.is_integer:
            key = "depth" if self.element == "multiply_add" else "element"
            rule = "elements of several products, or without a multiplier and an adder, are of whole numbers"
            raise rule_at(key, rule, self.operands[0].value)
        if self.element in ("compressor", "digit_serial") and not stays:
            raise rule_at("element", f"{self.element} is for output stationary arrays", self.dataflow)
        if self.element != "multiply_add" and self.add_stages:
            raise rule_at("add_stages", f"a {self.element} element has no adder, 0 here", str(self.add_stages))

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
    def operand_latency(self) -> int:
        """Cycles from an npu tile's matmul leaving its queue to its first operand that stays entering the array."""
        return timing.OPERAND_LATENCY + self.unpack_stages

    @property
    def row_hop(self) -> int:
        """Cycles by which a row of elements is behind the one above it: sums take so many to pass an element."""
        return 1 + self.add_stages

    @property
    def output_latency(self) -> int:
        """Cycles from a beat entering the array to its sums leaving it."""
        between = self.multiply_stages + self.recode_stages + self.resolve_stages
        return self.rows * self.row_hop + self.cols - 1 + between

    @property
    def accumulator_write(self) -> int:
        """Cycles from sums leaving the array to an npu tile's accumulator holding them."""
        return timing.ACCUMULATOR_WRITE + self.accumulate_stages - 1

    @property
    def products_apart(self) -> int:
        """Cycles by which a matmul's first sums come later than right behind the last ones of the matmul before.

        They may be added to any of those; folds of one matmul add to the same lines, in the same order.
        """
        return self.accumulate_stages - 1

    @property
    def recode_stages(self) -> int:
        """Cycles in which operands are made to digits, at the edge where they enter."""
        return int(self.element == "digit_serial")

    @property
    def resolve_stages(self) -> int:
        """Cycles in which sums of two or more numbers each become one, where they leave.

        Those of several weights are first compressed to two numbers; a carry then takes `RESOLVED_BITS` a cycle.
        """
        if self.element == "multiply_add":
            return 0
        return int(self.element == "compressor") + -(-self.sum_bits // RESOLVED_BITS)

    @property
    def sum_bits(self) -> int:
        """Width of a sum as it leaves the array's circuit."""
        return LONG_SUM_BITS if self.circuit_format is DataType.INT16 else SUM_BITS

    @property
    def products(self) -> int:
        """Products that all elements sum per cycle, of operands that they take whole."""
        return self.rows * self.cols * self.depth

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

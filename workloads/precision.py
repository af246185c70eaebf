"""Formats as a workload states them: of all operands, or of weights and activations apart (W4A16)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, NamedTuple, Protocol

from pydantic import Field

from siliconloom.arch.datatype import MX_BLOCK, MX_ELEMENTS, DataType, Packing, Sparsity, pattern_of
from siliconloom.arch.document import Document
from siliconloom.arch.errors import NotSupported
from siliconloom.workloads.fields import DEFAULT_PRECISION
from siliconloom.workloads.graph import Phase
from siliconloom.workloads.operators import Gemm, Operator
from siliconloom.workloads.roles import Role

WIDE = 16
"""Bits of the activations beside packed weights."""


class SparsityName(StrEnum):
    """Patterns of zeros among weights: two of four in a column are kept, or a part of the blocks of a column of them.

    The first is the field's 2:4.
    """

    TWO_OF_FOUR = "2of4"
    BLOCK = "block"

    @classmethod
    def _missing_(cls, value: object) -> SparsityName | None:
        return cls.TWO_OF_FOUR if pattern_of(value) == "2of4" else None


class PrecisionName(StrEnum):
    """What ``precision`` may say: a format of all operands, or W4A4, W8A8, W16A16, W4A8, W8A16, W4A16 and MX weights.

    W4A4 is int4, W8A8 int8, W16A16 int16, and W4A8 int8 beside weights that are packed in int4. With W8A16 and W4A16
    weights are packed in int8 and int4, with MXFP4 and MXFP8 in MX blocks (OCP Microscaling Formats), and activations
    have the 16-bit format that the model is stored in, or the chip's.
    """

    INT4 = "int4"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    W4A4 = "w4a4"
    W8A8 = "w8a8"
    W16A16 = "w16a16"
    W8A16 = "w8a16"
    W4A16 = "w4a16"
    W4A8 = "w4a8"
    MXFP4 = "mxfp4"
    MXFP8_E4M3 = "mxfp8_e4m3"
    MXFP8_E5M2 = "mxfp8_e5m2"

    @classmethod
    def _missing_(cls, value: object) -> PrecisionName | None:
        return {"fp8": cls.FP8_E4M3, "mxfp8": cls.MXFP8_E4M3}.get(str(value))

    @property
    def dtype(self) -> DataType | None:
        """Format of operands, where it is stated."""
        if self.weights is not None:
            return None
        return _ALIKE.get(self) or DataType(self.value)

    @property
    def states_operands(self) -> bool:
        """Whether it says in what format activations are, and does not leave that to the model and the chip."""
        return self.weights is None or self is PrecisionName.W4A8

    @property
    def weights(self) -> DataType | None:
        """Format of packed weights."""
        return _WEIGHTS.get(self)

    @property
    def in_blocks(self) -> bool:
        """Whether weights lie in MX blocks, whose rows are given."""
        return self.weights in MX_ELEMENTS

    def packing(self, group: int) -> Packing | None:
        """How weights are packed: in groups of so many rows, or in MX blocks of theirs."""
        if self.weights is None:
            return None
        return Packing(self.weights, MX_BLOCK if self.in_blocks else group)


_ALIKE = {PrecisionName.W4A4: DataType.INT4, PrecisionName.W8A8: DataType.INT8, PrecisionName.W16A16: DataType.INT16}
_WEIGHTS = {
    PrecisionName.W8A16: DataType.INT8,
    PrecisionName.W4A16: DataType.INT4,
    PrecisionName.W4A8: DataType.INT4,
    PrecisionName.MXFP4: DataType.FP4_E2M1,
    PrecisionName.MXFP8_E4M3: DataType.FP8_E4M3,
    PrecisionName.MXFP8_E5M2: DataType.FP8_E5M2,
}


class CacheName(StrEnum):
    """Formats that keys and values may be kept in."""

    INT4 = "int4"
    INT8 = "int8"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @classmethod
    def _missing_(cls, value: object) -> CacheName | None:
        return cls.FP8_E4M3 if value == "fp8" else None

    @property
    def dtype(self) -> DataType:
        """The format of an element."""
        return DataType(self.value)


class Unpacked(NamedTuple):
    """What is stated of weights beside their format.

    Bytes in memory of each byte, zeros that are not stored, and the roles of the products whose weights are packed,
    where not all are.
    """

    compression: float | None = None
    sparsity: Sparsity | None = None
    packed: frozenset[Role] | None = None


NOTHING_MORE = Unpacked()


class Stated(NamedTuple):
    """What is stated of an operator: the format of its operands, and how its weights are packed."""

    dtype: DataType | None
    packing: Packing | None


Compression = Annotated[float, Field(gt=0, le=1, strict=True)]
Density = Annotated[float, Field(gt=0, lt=1, strict=True)]
Block = Annotated[int, Field(ge=2, le=2**15, strict=True)]
DEFAULT_BLOCK = 128
"""Rows and columns of a block of weights where none are stated."""
PARTS = 16
"""A density is so many parts at most."""
Group = Annotated[int, Field(ge=2, le=2**13, strict=True)]
DEFAULT_GROUP = 128
"""Rows of a group where none are stated: GPTQ's and AWQ's."""


def formats_of(
    precision: PrecisionName | None, stored: DataType | None, group: int, default: DataType = DEFAULT_PRECISION
) -> tuple[DataType, Packing | None]:
    """Format of operands, and how weights are packed; ``stored`` is the format that a model is stored in."""
    if precision is None:
        return stored or default, None
    if precision.weights is None:
        assert precision.dtype is not None
        return precision.dtype, None
    if precision is PrecisionName.W4A8:
        return DataType.INT8, precision.packing(group)
    wide = stored is not None and not stored.is_integer and stored.bits == WIDE
    return (stored if stored is not None and wide else DataType.BF16), precision.packing(group)


def group_of(document: Document, stated: Iterable[PrecisionName], group: int | None, meant: bool = True) -> int:
    """Rows of a group of packed weights; refuses a number that is no power of two.

    So it does where nothing is packed, and the number is ``meant``: a file may say how it is to be packed, if it is.
    """
    if group is None:
        return DEFAULT_GROUP
    if meant and not any(precision.weights and not precision.in_blocks for precision in stated):
        rule = "groups are of packed weights (precision w4a16, w8a16 or w4a8)"
        if any(precision.in_blocks for precision in stated):
            rule += f"; an MX block has {MX_BLOCK} rows"
        raise document.error(rule, ("weight_group",), value=group)
    if group & group - 1:
        raise document.error("must be a power of two", ("weight_group",), value=group)
    return group


def check_compression(
    document: Document, stated: Iterable[PrecisionName], compression: float | None, phase: Phase | None = None
) -> None:
    """Refuse compressed weights that are packed, too, and such that training would have to compress again."""
    if compression is None:
        return
    if any(precision.weights for precision in stated):
        raise NotSupported("weights that are packed and compressed (weight_compression)")
    if phase is Phase.TRAINING:
        raise NotSupported("training with compressed weights (weight_compression)")


class Zeros(Protocol):
    """Keys of a description that say which weights are zeros by a pattern."""

    @property
    def weight_sparsity(self) -> SparsityName | None: ...
    @property
    def weight_density(self) -> float | None: ...
    @property
    def weight_block(self) -> int | None: ...
    @property
    def weight_compression(self) -> float | None: ...


def sparsity_of(document: Document, entry: Zeros, phase: Phase | None = None) -> Sparsity | None:
    """Which weights are kept; refuses keys that the pattern has none of, and patterns beside compression."""
    pattern = entry.weight_sparsity
    for key in ("weight_density", "weight_block"):
        if pattern is not SparsityName.BLOCK and getattr(entry, key) is not None:
            raise document.error("is of blocks (weight_sparsity block)", (key,), value=getattr(entry, key))
    if pattern is None:
        return None
    if entry.weight_compression is not None:
        raise NotSupported("weights that are sparse and compressed (weight_sparsity, weight_compression)")
    if phase is Phase.TRAINING:
        raise NotSupported("training with sparse weights (weight_sparsity)")
    if pattern is SparsityName.TWO_OF_FOUR:
        return Sparsity(2, 4)
    density = entry.weight_density
    if density is None:
        raise document.error("blocks need the share of them that is kept, weight_density", ("weight_sparsity",))
    kept = Fraction(density).limit_denominator(PARTS)
    if float(kept) != density:
        raise document.error(f"must be a fraction of at most {PARTS} parts", ("weight_density",), value=density)
    return Sparsity(kept.numerator, kept.denominator, entry.weight_block or DEFAULT_BLOCK)


def check_groups(document: Document, operators: Iterable[Operator]) -> None:
    """Refuse groups that do not divide the rows of a product's weights."""
    for operator in operators:
        if not isinstance(operator, Gemm) or operator.packing is None or operator.k % operator.packing.group == 0:
            continue
        blocks, most = operator.packing.dtype in MX_ELEMENTS, operator.k & -operator.k
        what, key = ("MX blocks", "precision") if blocks else ("groups", "weight_group")
        rule = f"{what} must divide the {operator.k} rows of {operator.name}'s weights"
        if not blocks:
            rule += f", as {most} does" if most > 1 else ", which are odd: no group does"
        raise document.error(rule, (key,), value=operator.packing.group)


__all__ = [
    "DEFAULT_GROUP",
    "NOTHING_MORE",
    "Block",
    "Compression",
    "Density",
    "Group",
    "PrecisionName",
    "SparsityName",
    "Stated",
    "Unpacked",
    "check_compression",
    "check_groups",
    "formats_of",
    "group_of",
    "sparsity_of",
]

"""Workloads written as lists: matrix products, and convolutions turned into matrix products by im2col."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from siliconloom.arch.document import Description, Document
from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.fields import DEFAULT_PRECISION, Count, OperandFormat, Title
from siliconloom.workloads.graph import Graph, Phase
from siliconloom.workloads.operators import Gemm, Operator
from siliconloom.workloads.precision import (
    DEFAULT_GROUP,
    Block,
    Compression,
    Density,
    Group,
    PrecisionName,
    SparsityName,
    check_compression,
    check_groups,
    formats_of,
    group_of,
    sparsity_of,
)

Size = Annotated[int, Field(ge=1, le=2**24, strict=True)]
Repeat = Annotated[int, Field(ge=1, le=2**16, strict=True)]
Pair = Size | tuple[Size, Size]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]


class GemmEntry(Description):
    """C[m,n] = A[m,k] B[k,n], ``batch`` times side by side and ``repeat`` times in sequence."""

    name: Name
    m: Size
    n: Size
    k: Size
    batch: Count = 1
    repeat: Repeat = 1
    weight: bool = Field(default=True, description="B is a stored parameter")
    bias: bool = False
    precision: PrecisionName | None = None


class GemmList(Description):
    """Matrix products that run in the order written and do not depend on each other."""

    kind: Literal["gemms"]
    name: Title | None = None
    description: str = ""
    source: str = ""
    precision: PrecisionName | None = None
    weight_group: Group | None = None
    weight_compression: Compression | None = None
    weight_sparsity: SparsityName | None = None
    weight_density: Density | None = None
    weight_block: Block | None = None
    gemms: tuple[GemmEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> GemmList:
        refuse_twins(gemm.name for gemm in self.gemms)
        return self


class ConvolutionEntry(Description):
    """A two-dimensional convolution of an image of ``height`` x ``width``; pairs are (vertical, horizontal)."""

    name: Name
    in_channels: Size
    out_channels: Size
    height: Size
    width: Size
    kernel: Pair
    stride: Pair = 1
    padding: (
        Annotated[int, Field(ge=0, le=2**16, strict=True)]
        | tuple[Annotated[int, Field(ge=0, le=2**16, strict=True)], Annotated[int, Field(ge=0, le=2**16, strict=True)]]
    ) = 0
    dilation: Pair = 1
    groups: Size = 1
    repeat: Repeat = 1
    bias: bool = False
    precision: OperandFormat | None = None

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        size = (self.height, self.width)
        return window_places(size, self.kernel, self.stride, self.padding, self.dilation)

    def product(self, batch: int, **common: Any) -> Gemm:
        """The `Gemm` of ``batch`` images by im2col, see `convolution_graph`; ``common`` are fields of any operator."""
        return Gemm(
            m=batch * prod(self.output_size),
            n=self.out_channels // self.groups,
            k=self.in_channels // self.groups * prod(_pair(self.kernel)),
            batch=self.groups,
            bias=self.bias,
            **common,
        )

    @model_validator(mode="after")
    def _check(self) -> ConvolutionEntry:
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.groups:
                raise ValueError(f"{name} ({getattr(self, name)}) must be a multiple of groups ({self.groups})")
        if min(self.output_size) < 1:
            raise ValueError("the kernel is larger than the padded image")
        return self


class ConvolutionList(Description):
    """Convolutions that run in the order written, on a batch of images."""

    kind: Literal["convolutions"]
    name: Title | None = None
    description: str = ""
    source: str = ""
    precision: OperandFormat | None = None
    batch: Count = 1
    convolutions: tuple[ConvolutionEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> ConvolutionList:
        refuse_twins(convolution.name for convolution in self.convolutions)
        return self


def gemm_graph(document: Document, name: str) -> Graph:
    """Graph of a document of kind ``gemms``: a block for each entry, no edges, batch and tokens of one."""
    entries = document.validate(GemmList)
    stated = [p for p in (entries.precision, *(entry.precision for entry in entries.gemms)) if p is not None]
    group = group_of(document, stated, entries.weight_group)
    check_compression(document, stated, entries.weight_compression)
    sparsity = sparsity_of(document, entries)
    operators = []
    for entry in entries.gemms:
        precision, packing = formats_of(entry.precision or entries.precision, None, group)
        operators.append(
            Gemm(
                name=entry.name,
                block=entry.name,
                repeat=entry.repeat,
                precision=precision,
                m=entry.m,
                n=entry.n,
                k=entry.k,
                batch=entry.batch,
                weight=entry.weight,
                bias=entry.bias,
                packing=packing if entry.weight else None,
                compression=entries.weight_compression if entry.weight else None,
                sparsity=sparsity if entry.weight else None,
            )
        )
    check_groups(document, operators)
    return _graph(entries, name, operators, batch=1)


def convolution_graph(document: Document, name: str) -> Graph:
    """Graph of a document of kind ``convolutions``: a block for each entry, no edges, one token per image.

    im2col: a row of A is the patch under one output pixel, so m = batch x output pixels, k = input channels of a
    group x kernel area, n = output channels of a group, and the groups are the batch of the `Gemm`. Its input bytes
    are those of A, in which overlapping patches stand several times.
    """
    entries = document.validate(ConvolutionList)
    precision = entries.precision or DEFAULT_PRECISION
    operators = []
    for entry in entries.convolutions:
        common = {"name": entry.name, "block": entry.name, "repeat": entry.repeat}
        operators.append(entry.product(entries.batch, precision=entry.precision or precision, **common))
    return _graph(entries, name, operators, batch=entries.batch, images=entries.batch)


def _graph(
    entries: GemmList | ConvolutionList, name: str, operators: Iterable[Operator], batch: int, images: int = 0
) -> Graph:
    dataflow = Dataflow()
    for operator in operators:
        dataflow.add(operator)
    stated = PrecisionName(entries.precision) if entries.precision is not None else None
    return Graph(
        name=entries.name or name,
        phase=Phase.PREFILL,
        precision=formats_of(stated, None, DEFAULT_GROUP)[0],
        explicit_precision=stated is not None and stated.states_operands,
        batch=batch,
        tokens=batch,
        images=images,
        dataflow=dataflow,
    )


def refuse_twins(names: Iterable[str]) -> None:
    """Raise `ValueError` where two entries have one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"two entries are named '{name}'; use repeat, or other names")
        seen.add(name)


def window_places(size: tuple[int, int], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> tuple[int, int]:
    """Places of a window in a padded image, one above the other and side by side; below one where it is larger."""
    pairs = zip(size, _pair(kernel), _pair(stride), _pair(padding), _pair(dilation), strict=True)
    high, wide = (
        (length + 2 * border - spread * (taps - 1) - 1) // step + 1 for length, taps, step, border, spread in pairs
    )
    return high, wide


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value

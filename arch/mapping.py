"""A mapping as a description: all that is decided about a workload on one chip, as ``loom map -o`` writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from siliconloom.arch.document import Description, rule_at
from siliconloom.arch.quantity import Bytes

LARGEST = 2**31 - 1
Size = Annotated[int, Field(ge=1, le=LARGEST, strict=True)]
"""Elements or parts along a dimension."""


class DescribedLayout(Description):
    """Bytes of a slot of each ring; ``partial`` and ``context`` lie in the accumulator, the others in the scratchpad.

    A ring has two slots; ``chained`` and ``gates`` have one.
    """

    weights: Bytes = Field(description="stationary operands of the array")
    values: Bytes = Field(
        default=0, description="values of attention, and every other tile of products, where not all lie in ``weights``"
    )
    moving: Bytes = Field(description="moving operands of the array")
    vector: Bytes = Field(default=0, description="first operands of the vector unit")
    second: Bytes = Field(default=0, description="second operands of the vector unit")
    results: Bytes = Field(description="what is stored")
    probabilities: Bytes = Field(default=0, description="of attention, from the vector unit to the array")
    constants: Bytes = Field(default=0, description="what requantises columns, parameters of functions")
    chained: Bytes = Field(default=0, description="from one function of the vector unit to the next")
    gates: Bytes = Field(default=0, description="what a gated function takes as its second operand")
    queries: Bytes = Field(default=0, description="of attention, transposed; for arrays that keep their sums")
    powers: Bytes = Field(
        default=0, description="what is transposed into probabilities, for arrays that keep their sums"
    )
    partial: Bytes = Field(description="sums of products, in the accumulator")
    context: Bytes = Field(default=0, description="sums of attention's second product, in the accumulator")


class DescribedCut(Description):
    """Parts into which an operator is cut along its dimensions; each tile of the chip has one."""

    batch: Size = Field(default=1, description="of a product: products")
    m: Size = Field(default=1, description="of a product: rows")
    n: Size = Field(default=1, description="of a product: columns")
    pairs: Size = Field(default=1, description="of attention: sequences with key-value heads")
    queries: Size = Field(default=1, description="of attention: query tokens")
    group: Size = Field(default=1, description="of attention: heads that share a key-value head")
    rows: Size = Field(default=1, description="of a vector operator")
    cols: Size = Field(default=1, description="of a vector operator")


class DescribedAhead(Description):
    """Tasks before whose loads that wait for results the first weights of a product are loaded, by their ring.

    Each is an operator that its block computes before the product, or the product itself.
    """

    weights: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="of the ring ``weights``; in their turn when absent"
    )
    values: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="of the ring ``values``; in their turn when absent"
    )


class DescribedProduct(Description):
    """Tiles of a product, and the order of its outer loops."""

    m: Size
    n: Size
    k: Size
    order: Literal["n_outer", "m_outer", "m_pairs", "m_kept"] = Field(
        description="the outer one of the loops over rows and columns; rows in pairs of tiles, which both stay; or m "
        "rows that stay in both slots as one"
    )
    resident: bool = Field(
        default=False, description="the operand of the outer loop stays on chip; needs tiles of the whole depth k"
    )
    held: Size | None = Field(
        default=None,
        description="columns of rows that stay (m_kept), in whole tiles of k: the rest comes again for every tile of "
        "columns; all of the depth when absent",
    )
    block: Size | None = Field(
        default=None,
        description="rows of a block of the first operand, on an array that keeps its sums: a power of two below its "
        "rows; as many as it has when absent",
    )
    sequence: list[Annotated[int, Field(ge=0, le=LARGEST)]] | None = Field(
        default=None,
        max_length=10_000,
        description="numbers of the tiles of rows, as they are computed; one after the other when absent",
    )
    ahead: DescribedAhead = Field(default=DescribedAhead(), description="what is loaded before its turn")
    chunk: Bytes | None = Field(
        default=None,
        description="longest transfer of weights: other units have the memory port in between; a tile's when absent",
    )


class DescribedAttention(Description):
    """Tiles of attention, in tokens, and heads that share keys stacked as rows."""

    queries: Size
    keys: Size
    heads: Size
    whole: bool = Field(
        default=False, description="where keys take several tiles: all sums of a query are there before its softmax"
    )
    resident: bool = Field(
        default=False,
        description="where all keys are one tile: it stays on chip with its values while tiles of queries pass",
    )


class DescribedVector(Description):
    """Tiles of an operator of the vector unit."""

    rows: Size
    cols: Size


class DescribedTask(Description):
    """What is decided for one operator; exactly one of ``gemm``, ``attention`` and ``vector``."""

    operator: Annotated[str, Field(min_length=1, max_length=200)]
    repetition: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        default=0, description="of its block, from which on it counts"
    )
    fused: list[str] | None = Field(
        default=None, max_length=8, description="operators computed on its results; all that can be when absent"
    )
    cut: DescribedCut = DescribedCut()
    layout: DescribedLayout | None = Field(
        default=None,
        description="the buffers are divided anew for this operator; as ``layout`` says for all others when absent",
    )
    gemm: DescribedProduct | None = None
    attention: DescribedAttention | None = None
    vector: DescribedVector | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> DescribedTask:
        given = [name for name in ("gemm", "attention", "vector") if getattr(self, name) is not None]
        if len(given) != 1:
            rule = "one of gemm, attention and vector says how it is tiled" + (
                f"; there are {' and '.join(given)}" if given else ""
            )
            raise rule_at(given[1] if given else "operator", rule, None if given else self.operator)
        return self


class DescribedPlace(Description):
    """Where an object lies: its units (parameters of a layer, keys, values) in the order of the levels."""

    operator: str
    role: str = Field(
        description="parameters, keys, values, scales, functions, table, indices, input, operand N, residual or result"
    )
    levels: dict[str, Annotated[int, Field(ge=1, le=LARGEST)]] = Field(
        min_length=1, description="units in each memory level"
    )


class DescribedMapping(Description):
    """A mapping of a workload to a chip."""

    kind: Literal["mapping"]
    joined: bool = Field(default=False, description="the tiles work side by side as one (a chip's tiles_join)")
    banked: bool = Field(
        default=True, description="each kind of ring has whole banks; false where there are too few of them"
    )
    layout: DescribedLayout
    tasks: list[DescribedTask] = Field(min_length=1, max_length=10_000)
    placement: list[DescribedPlace] | None = Field(
        default=None, max_length=100_000, description="on chips with several memory levels"
    )

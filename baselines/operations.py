"""Operations that a GPU is timed or predicted on, as columns: one row is one kernel, collective or model run.

The columns are those of every CSV file of this package (`COLUMNS`):

=============  ==============================================================================================
op             what is done, an `Op`
m, n, k        of a product C[m,n] = A[m,k] B[k,n]; m rows of n columns of an element-wise operation
batch          products or sequences side by side; experts of a grouped product
dealt          how the m rows of a grouped product are dealt to its experts, a `Dealt`
top_k          of rows dealt by chance: experts of a token, all different, so that m rows are m / top_k tokens
q_len, kv_len  query tokens, and keys that they look at (those before them included), per sequence
heads          query heads; kv_heads key and value heads; head_dim elements of a head
causal         whether a query looks only at keys up to its own
dtype          number format of the operands, a `Precision`
weights        format in which B is stored where that is another one, a `WeightFormat`; the product is in ``dtype``
group          rows of B that share a 16-bit scale in each column; 0 where a column has one scale
sparsity       which weights of B are kept, a `SparsePattern`; the others are zeros and not stored
cache          of attention: format in which keys and values are kept where that is another one, a `CacheStored`
gpus           GPUs that take part
bytes          of a collective: the larger of its send and receive buffer on one GPU (what nccl-tests calls size)
=============  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from siliconloom.arch.datatype import CACHE_SCALE_BYTES
from siliconloom.arch.errors import nearest_name
from siliconloom.baselines.cells import Cells, parse_cells, read_text

Int = NDArray[np.int64]
Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Code = NDArray[np.int8]

LARGEST_SIZE = 2**31 - 1
LARGEST_BUFFER = 2**50


class Op(StrEnum):
    """What a row does. Element-wise operations have m rows of n columns of their *output*."""

    GEMM = "gemm"
    ATTENTION_PREFILL = "attention_prefill"
    ATTENTION_DECODE = "attention_decode"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    RMSNORM = "rmsnorm"
    LAYERNORM = "layernorm"
    SOFTMAX = "softmax"
    SILU_MUL = "silu_mul"  # silu(x) * y of the two halves of 2n columns: the gate of SwiGLU
    GELU = "gelu"
    ADD = "add"
    ROPE = "rope"  # n = (heads + kv_heads) * head_dim
    EMBEDDING = "embedding"
    PREFILL = "prefill"  # a whole model, from the prompts of a batch to their first tokens
    DECODE = "decode"  # a whole model, one further token of each sequence of a batch
    SERVE = "serve"  # a whole model, a batch from prompts to its last output tokens
    SERVE_TTFT = "serve_ttft"  # time to first token with `batch` requests in flight, queueing included
    SERVE_TPOT = "serve_tpot"  # time per output token with `batch` requests in flight
    LAYER_PREFILL = "layer_prefill"  # one transformer layer of a model
    LAYER_DECODE = "layer_decode"
    ATTENTION_BACKWARD = "attention_backward"  # gradients of queries, keys and values, its outputs and sums at hand
    GROUPED_GEMM = "grouped_gemm"  # one kernel for the products of `batch` experts: m rows in all, dealt to them


OPS = tuple(Op)
"""An op's code is its place here."""
COLLECTIVES = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL)
PRODUCTS = (Op.GEMM, Op.GROUPED_GEMM)
ATTENTION = (Op.ATTENTION_PREFILL, Op.ATTENTION_DECODE)
ELEMENTWISE = (Op.RMSNORM, Op.LAYERNORM, Op.SOFTMAX, Op.SILU_MUL, Op.GELU, Op.ADD, Op.ROPE, Op.EMBEDDING)
MASKED = (Op.ATTENTION_PREFILL, Op.ATTENTION_BACKWARD)
"""Operations on a whole prompt, which say whether they are causal."""
KERNELS = (*PRODUCTS, *ATTENTION, Op.ATTENTION_BACKWARD, *COLLECTIVES, *ELEMENTWISE)
"""Operations with a shape of their own."""
MODELS = tuple(op for op in OPS if op not in KERNELS)
"""Operations on a whole model or layer: their rows name it (see `siliconloom.baselines.tables`)."""


class Precision(StrEnum):
    """Number format of operands. `DataType` of arch holds what our own arrays compute in; GPUs have others."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"

    @property
    def size(self) -> float:
        """Bytes of one element in memory."""
        return _SIZE[self]


_SIZE = {
    Precision.FP64: 8.0,
    Precision.FP32: 4.0,
    Precision.TF32: 4.0,
    Precision.FP16: 2.0,
    Precision.BF16: 2.0,
    Precision.FP8: 1.0,
    Precision.INT8: 1.0,
    Precision.FP4: 0.5,
}
PRECISIONS = tuple(Precision)
"""A precision's code is its place here."""


class WeightFormat(StrEnum):
    """In what B lies in memory: the operands' format, or codes that the kernel makes operands of."""

    OPERANDS = "operands"
    INT8 = "int8"
    INT4 = "int4"


WEIGHT_FORMATS = tuple(WeightFormat)
"""A format's code is its place here."""
_CODE_BYTES = {WeightFormat.OPERANDS: 0.0, WeightFormat.INT8: 1.0, WeightFormat.INT4: 0.5}


class CacheStored(StrEnum):
    """In what keys and values are kept: the operands' format, fp8, or codes with a scale and an offset.

    Codes have both for each head's key and value of a position, of 16 bits each.
    """

    OPERANDS = "operands"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"


CACHES = tuple(CacheStored)
"""A format's code is its place here."""
_CACHE_BYTES = {CacheStored.OPERANDS: 0.0, CacheStored.FP8: 1.0, CacheStored.INT8: 1.0, CacheStored.INT4: 0.5}
_CACHE_SCALES = {CacheStored.INT8, CacheStored.INT4}


class SparsePattern(StrEnum):
    """Zeros among the weights of B: none that are known, or two of every four in a column (2:4)."""

    DENSE = "dense"
    TWO_OF_FOUR = "2of4"


class Dealt(StrEnum):
    """How rows are dealt to experts: evenly, or by chance, each token's to any of them with the same probability."""

    EVEN = "even"
    CHANCE = "chance"


DEALS = tuple(Dealt)
"""A way's code is its place here."""
PATTERNS = tuple(SparsePattern)
"""A pattern's code is its place here."""
KEPT, WHERE_BYTES = 0.5, 0.25
"""Of 2:4: share of weights that are kept, and bytes that say where one stood (two bits)."""
SCALE_BYTES = 2.0
"""Of the scale of a column of a group."""
ALIASES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "float4": "fp4",
    "nvfp4": "fp4",
}


@cache
def op_mask(ops: tuple[Op, ...]) -> Bool:
    """Whether each operation's code is one of ``ops``."""
    found = np.zeros(len(OPS), bool)
    found[[OPS.index(op) for op in ops]] = True
    return found


class Operations(Struct, frozen=True, eq=False):
    """Rows as columns of one length; numbers are 0 and ``causal`` is false where a column is not meant.

    ``op``, ``dtype``, ``weights``, ``sparsity``, ``cache`` and ``dealt`` are codes: places in `OPS`, `PRECISIONS`,
    `WEIGHT_FORMATS`, `PATTERNS`, `CACHES` and `DEALS`.
    """

    op: Code
    m: Int
    n: Int
    k: Int
    batch: Int
    q_len: Int
    kv_len: Int
    heads: Int
    kv_heads: Int
    head_dim: Int
    causal: Bool
    dtype: Code
    gpus: Int
    bytes: Int
    weights: Code
    group: Int
    sparsity: Code
    cache: Code
    dealt: Code
    top_k: Int

    def __len__(self) -> int:
        return len(self.op)

    def select(self, rows: ArrayLike) -> Operations:
        """Rows of a mask, or of a list of indices."""
        chosen = np.asarray(rows)
        return Operations(**{name: getattr(self, name)[chosen] for name in self.__struct_fields__})

    def among(self, *ops: Op) -> Bool:
        """Mask of the rows that do one of ``ops``."""
        found: Bool = op_mask(ops)[self.op]
        return found

    def ops(self) -> list[Op]:
        """Operation of every row."""
        return [OPS[code] for code in self.op.tolist()]

    def dtypes(self) -> list[Precision]:
        """Precision of every row."""
        return [PRECISIONS[code] for code in self.dtype.tolist()]

    def element_bytes(self) -> Float:
        """Bytes of one operand element of every row."""
        return np.array([p.size for p in PRECISIONS])[self.dtype]

    def packed(self) -> Bool:
        """Mask of the products whose weights are stored as codes."""
        found: Bool = self.weights != WEIGHT_FORMATS.index(WeightFormat.OPERANDS)
        return found

    def sparse(self) -> Bool:
        """Mask of the products whose weights are sparse."""
        found: Bool = self.sparsity != PATTERNS.index(SparsePattern.DENSE)
        return found

    def cached(self) -> Bool:
        """Mask of the attention whose keys and values are kept in another format."""
        found: Bool = self.cache != CACHES.index(CacheStored.OPERANDS)
        return found

    def reads_cache(self) -> Bool:
        """Mask of the attention that reads keys and values which are kept in another format.

        Next tokens do, and prompts behind earlier tokens, which have more keys than queries, or without a causal mask,
        whose keys are all earlier. Whole prompts only write.
        """
        behind = self.among(Op.ATTENTION_PREFILL) & ((self.kv_len > self.q_len) | ~self.causal)
        found: Bool = self.cached() & (self.among(Op.ATTENTION_DECODE) | behind)
        return found

    def read_bytes(self) -> Float:
        """Bytes of an element of keys and values as attention reads them."""
        return np.where(self.reads_cache(), self.kept_bytes(), self.element_bytes())

    def kept_bytes(self) -> Float:
        """Bytes of an element of keys and values as they are kept, its part of a head's scale and offset included."""
        codes = np.array([_CACHE_BYTES[f] for f in CACHES])[self.cache]
        scaled = np.array([f in _CACHE_SCALES for f in CACHES])[self.cache]
        scales = np.where(scaled, CACHE_SCALE_BYTES / np.maximum(self.head_dim, 1), 0.0)
        return np.where(self.cached(), codes + scales, self.element_bytes())

    def weight_bytes(self) -> Float:
        """Bytes of B of every product: operands, or codes and the scales of their groups; 0 of other rows.

        Of sparse ones those that are kept, and where they stood.
        """
        batch = self.products()
        elements = batch * self.n * self.k * np.where(self.sparse(), KEPT, 1.0)
        groups = np.where(self.group > 0, -(-self.k // np.maximum(self.group, 1)), 1)
        scales = batch * self.n * groups * SCALE_BYTES
        codes = elements * np.array([_CODE_BYTES[f] for f in WEIGHT_FORMATS])[self.weights]
        found: Float = np.where(self.packed(), codes + scales, elements * self.element_bytes())
        found = found + np.where(self.sparse(), elements * WHERE_BYTES, 0.0)
        return np.where(self.among(*PRODUCTS), found, 0.0)

    def products(self) -> Float:
        """Products of every row that have work: of grouped ones experts with a row, their mean number under chance."""
        batch = self.batch.astype(np.float64)
        used = np.maximum(self.top_k, 1)
        missed = np.exp(self.m / used * np.log1p(-used / np.maximum(batch, used + 1e-12)))
        active = np.where(self.by_chance(), batch * (1.0 - missed), np.minimum(batch, self.m))
        return np.where(self.among(Op.GROUPED_GEMM), active, batch)

    def by_chance(self) -> Bool:
        """Mask of the grouped products whose rows are dealt by chance."""
        found: Bool = self.dealt == DEALS.index(Dealt.CHANCE)
        return found

    def row(self, index: int) -> dict[str, Any]:
        """One row as plain values, without the columns that it does not mean."""
        found: dict[str, Any] = {"op": str(OPS[self.op[index]])}
        for name in SIZES:
            if value := int(getattr(self, name)[index]):
                found[name] = value
        if found["op"] in MASKED:
            found["causal"] = bool(self.causal[index])
        found["dtype"] = str(PRECISIONS[self.dtype[index]])
        if stored := int(self.weights[index]):
            found |= {"weights": str(WEIGHT_FORMATS[stored]), "group": int(self.group[index])}
        if pattern := int(self.sparsity[index]):
            found["sparsity"] = str(PATTERNS[pattern])
        if cache := int(self.cache[index]):
            found["cache"] = str(CACHES[cache])
        if dealt := int(self.dealt[index]):
            found["dealt"] = str(DEALS[dealt])
        if used := int(self.top_k[index]):
            found["top_k"] = used
        return found

    def describe(self, index: int) -> str:
        """One row in a few words, for messages: ``gemm m=4096 n=4096 k=4096 bf16``."""
        row = self.row(index)
        sizes = [f"{name}={value}" for name, value in row.items() if name in SIZES]
        packed = [f"weights {row['weights']} in groups of {row['group'] or 'all'}"] if "weights" in row else []
        sparse = [f"sparse {row['sparsity']}"] if "sparsity" in row else []
        kept = [f"cache {row['cache']}"] if "cache" in row else []
        dealt = ["by chance"] if "dealt" in row else []
        dealt += [f"{row['top_k']} of a token"] if "top_k" in row else []
        return " ".join([row["op"], *sizes, row["dtype"], *packed, *sparse, *kept, *dealt])


COLUMNS = Operations.__struct_fields__
SIZES = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "gpus", "bytes")

_SHAPE = ("m", "n")
_HEADS = ("heads", "kv_heads", "head_dim")
MEANT: dict[Op, tuple[str, ...]] = {
    **dict.fromkeys(PRODUCTS, (*_SHAPE, "k", "batch")),
    **dict.fromkeys((*ATTENTION, Op.ATTENTION_BACKWARD), ("batch", "q_len", "kv_len", *_HEADS)),
    **dict.fromkeys(COLLECTIVES, ("gpus", "bytes")),
    **dict.fromkeys(ELEMENTWISE, _SHAPE),
    **dict.fromkeys(MODELS, ("batch", "gpus")),
}
"""Sizes that each operation has; what a file gives for others is passed over."""


FORMATS: dict[str, tuple[tuple[Op, ...], str]] = {
    "weights": (PRODUCTS, "a format of the weights of products"),
    "group": (PRODUCTS, "rows of packed weights that share a scale"),
    "sparsity": (PRODUCTS, "zeros among the weights of products"),
    "cache": (ATTENTION, "a format of keys and values, of attention"),
    "dealt": ((Op.GROUPED_GEMM,), "how rows are dealt to the experts of grouped products"),
    "top_k": ((Op.GROUPED_GEMM,), "how many experts of grouped products a token draws"),
}
"""Columns that say more than sizes: of which operations, and what they are. For others a file leaves them empty."""


def read_operations(path: Path | str) -> Operations:
    """Rows of a CSV file with the header `COLUMNS`; ``-`` is standard input, ``.gz`` is unpacked.

    Columns may stand in any order, and those that no row needs may be missing. Left empty, ``batch`` is 1, ``kv_len``
    is ``q_len`` (prefill), ``q_len`` is 1 (decode), ``kv_heads`` is ``heads``, ``causal`` holds for prefill, ``dtype``
    is bf16, ``weights`` and ``cache`` are in the operands' format, ``group`` is the whole column, ``dealt`` is even,
    and ``top_k`` is 1.

    Raises
    ------
    DescriptionError
        With file, line, column, rule and value, for the first cell that breaks a rule.
    """
    source, text = read_text(path)
    return operations_from_cells(parse_cells(source, text, COLUMNS, ("op",)), KERNELS)


def operations_from_cells(cells: Cells, allowed: Sequence[Op]) -> Operations:
    """Rows from the cells of `COLUMNS`, defaults filled in, every rule checked; ``allowed`` are the known ops."""
    op = _codes(cells, "op", allowed, {}, OPS)
    columns: dict[str, Any] = {"op": op}
    for name in SIZES:
        columns[name] = cells.integers(name, _buffer if name == "bytes" else _size, -1)
    columns["causal"] = cells.integers("causal", _truth, -1)
    columns["dtype"] = _codes(cells, "dtype", PRECISIONS, ALIASES, PRECISIONS, empty=Precision.BF16)
    columns["weights"] = _codes(cells, "weights", WEIGHT_FORMATS, {}, WEIGHT_FORMATS, empty=WeightFormat.OPERANDS)
    columns["group"] = cells.integers("group", _size, 0)
    columns["sparsity"] = _codes(cells, "sparsity", PATTERNS, {"2:4": "2of4"}, PATTERNS, empty=SparsePattern.DENSE)
    columns["cache"] = _codes(cells, "cache", CACHES, ALIASES, CACHES, empty=CacheStored.OPERANDS)
    columns["dealt"] = _codes(cells, "dealt", DEALS, {}, DEALS, empty=Dealt.EVEN)
    columns["top_k"] = cells.integers("top_k", _size, 0)
    return _complete(columns, cells)


def make_operations(rows: Sequence[Mapping[str, Any]]) -> Operations:
    """Rows from mappings of column to value, as `read_operations` would read them; errors count rows as lines."""
    text = {name: tuple("" if row.get(name) is None else str(row[name]) for row in rows) for name in COLUMNS}
    for number, row in enumerate(rows):
        if extra := next((name for name in row if name not in COLUMNS), None):
            raise KeyError(f"row {number}: no column '{extra}'")
    cells = Cells("<rows>", COLUMNS, text, range(1, len(rows) + 1), [""] * len(rows))
    return operations_from_cells(cells, OPS)


def join(parts: Sequence[Operations]) -> Operations:
    """Rows of all parts, one after the other."""
    return Operations(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS})


def _complete(columns: dict[str, Any], cells: Cells) -> Operations:
    """Fill in what was left empty (-1), clear what is not meant, check what is."""
    op = columns["op"]
    kind = {name: op_mask(tuple(o for o in OPS if name in MEANT[o]))[op] for name in SIZES}
    decode = op == OPS.index(Op.ATTENTION_DECODE)
    whole = op_mask(MASKED)[op]
    _default(columns, "batch", kind["batch"], 1)
    _default(columns, "q_len", decode, 1)
    _default(columns, "q_len", whole, columns["kv_len"])
    _default(columns, "kv_len", whole, columns["q_len"])
    _default(columns, "kv_heads", kind["kv_heads"], columns["heads"])
    _default(columns, "gpus", op_mask(tuple(MODELS))[op], 1)
    _default(columns, "causal", whole, 1)
    columns["causal"] = (columns["causal"] > 0) & (whole | decode)
    for name in SIZES:
        values = columns[name]
        _refuse(cells, op, name, kind[name] & (values == -1), "{op} needs it", values, empty=True)
        _refuse(cells, op, name, kind[name] & (values == 0), "must be at least 1", values)
        columns[name] = np.where(kind[name], values, 0)
    sizes = columns
    _refuse(
        cells,
        op,
        "gpus",
        op_mask(tuple(COLLECTIVES))[op] & (sizes["gpus"] < 2),
        "{op} needs at least 2 GPUs",
        sizes["gpus"],
    )
    packed = columns["weights"] > 0
    for name, (ops, rule) in FORMATS.items():
        meant = op_mask(ops)[op]
        stray = (columns[name] > 0) & ~(meant & packed if name == "group" else meant)
        if stray.any():
            row = int(np.argmax(stray))
            what = "weights that are not packed" if meant[row] else OPS[op[row]]
            raise cells.error(f"{rule}, not of {what}", row, name, value=cells.columns[name][row])
    wide = np.isin(columns["dtype"], [PRECISIONS.index(p) for p in (Precision.FP16, Precision.BF16)])
    if (packed & ~wide).any():
        row = int(np.argmax(packed & ~wide))
        given = cells.columns["weights"][row]
        raise cells.error("products with packed weights have operands in fp16 or bf16", row, "weights", value=given)
    if ((columns["cache"] > 0) & ~wide).any():
        row = int(np.argmax((columns["cache"] > 0) & ~wide))
        rule = "attention whose keys and values are kept in another format has operands in fp16 or bf16"
        raise cells.error(rule, row, "cache", value=cells.columns["cache"][row])
    _check_draws(columns, cells)
    some = np.maximum(sizes["kv_heads"], 1)
    _refuse(
        cells,
        op,
        "heads",
        kind["heads"] & (sizes["heads"] % some != 0),
        "must be a multiple of kv_heads",
        sizes["heads"],
        beside=("kv_heads", sizes["kv_heads"]),
    )
    _refuse(
        cells,
        op,
        "kv_len",
        columns["causal"] & (sizes["kv_len"] < sizes["q_len"]),
        "must be at least q_len when attention is causal",
        sizes["kv_len"],
        beside=("q_len", sizes["q_len"]),
    )
    return Operations(**columns)


def _check_draws(columns: dict[str, Any], cells: Cells) -> None:
    """A token draws different experts, and each of its rows goes to one of them."""
    used, said = columns["top_k"], columns["top_k"] > 0
    drawn = columns["dealt"] == DEALS.index(Dealt.CHANCE)
    rules = {
        "a token draws experts where rows are dealt by chance (dealt)": said & ~drawn,
        "must be no more than the experts (batch), as those of a token are different": used > columns["batch"],
        "must divide the rows (m)": said & (columns["m"] % np.maximum(used, 1) > 0),
    }
    for rule, wrong in rules.items():
        if wrong.any():
            row = int(np.argmax(wrong))
            raise cells.error(rule, row, "top_k", value=int(used[row]))


def _default(columns: dict[str, Any], name: str, where: Bool, value: int | Int) -> None:
    columns[name] = np.where(where & (columns[name] == -1), value, columns[name])


def _refuse(
    cells: Cells,
    op: Code,
    name: str,
    broken: Bool,
    rule: str,
    values: Int,
    *,
    empty: bool = False,
    beside: tuple[str, Int] | None = None,
) -> None:
    """Raise for the first row of ``broken``."""
    if not broken.any():
        return
    row = int(np.argmax(broken))
    value = None if empty else f"{name} {values[row]}, {beside[0]} {beside[1][row]}" if beside else int(values[row])
    error = cells.error(rule.format(op=OPS[op[row]]), row, name)
    if value is None:
        raise error
    raise type(error)(f"{error.rule} (got {value})", position=error.position, path=name)


def _codes(
    cells: Cells,
    column: str,
    allowed: Sequence[StrEnum],
    aliases: Mapping[str, str],
    order: Sequence[StrEnum],
    empty: StrEnum | None = None,
) -> Code:
    """Code of every cell of a column of names."""
    texts = cells.columns.get(column, ("",) * len(cells))
    names = {str(name): order.index(name) for name in allowed}
    known: dict[str, int] = {}
    for text in set(texts):
        name = aliases.get(text.lower(), text.lower())
        if not text and empty is not None:
            known[text] = order.index(empty)
        elif name in names:
            known[text] = names[name]
        else:
            row = texts.index(text)
            near = nearest_name(text, names) if text else None
            raise cells.error(f"must be one of {', '.join(names)}", row, column, value=text, nearest=near)
    return np.fromiter(map(known.__getitem__, texts), np.int8, len(texts))


def _size(text: str) -> int:
    return _whole(text, LARGEST_SIZE)


def _buffer(text: str) -> int:
    return _whole(text, LARGEST_BUFFER)


def _whole(text: str, largest: int) -> int:
    """A whole number from 0 on; ``4096.0`` is one, as some programs write whole columns with empty cells."""
    try:
        value = int(text)
    except ValueError:
        try:
            real = float(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if real != real or real in (float("inf"), float("-inf")) or real != int(real):
            raise ValueError("must be a whole number") from None
        value = int(real)
    if value < 0:
        raise ValueError("must not be negative")
    if value > largest:
        raise ValueError(f"must be at most {largest}")
    return value


def _truth(text: str) -> int:
    try:
        return _TRUTH[text.lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


_TRUTH = {"true": 1, "1": 1, "yes": 1, "1.0": 1, "false": 0, "0": 0, "no": 0, "0.0": 0}

__all__ = [
    "ALIASES",
    "ATTENTION",
    "MASKED",
    "COLLECTIVES",
    "COLUMNS",
    "DEALS",
    "Dealt",
    "ELEMENTWISE",
    "KERNELS",
    "MEANT",
    "MODELS",
    "OPS",
    "Op",
    "Operations",
    "PATTERNS",
    "PRECISIONS",
    "PRODUCTS",
    "Precision",
    "SIZES",
    "SparsePattern",
    "WEIGHT_FORMATS",
    "WeightFormat",
    "join",
    "make_operations",
    "operations_from_cells",
    "read_operations",
]

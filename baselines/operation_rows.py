"""Rows of operations from cells of text: what is left empty, and every rule that a row must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from siliconloom.arch.datatype import MX_BLOCK
from siliconloom.arch.errors import nearest_name
from siliconloom.baselines.cells import Cells, parse_cells, read_text
from siliconloom.baselines.operations import (
    ALIASES,
    ATTENTION,
    CACHES,
    COLLECTIVES,
    COLUMNS,
    DEALS,
    IN_BLOCKS,
    KERNELS,
    LARGEST_BUFFER,
    LARGEST_SIZE,
    MASKED,
    MEANT,
    MODELS,
    OPS,
    PACKED_BESIDE,
    PATTERNS,
    PRECISIONS,
    PRODUCTS,
    SIZES,
    WEIGHT_FORMATS,
    Bool,
    CacheStored,
    Code,
    Dealt,
    Int,
    Op,
    Operations,
    Precision,
    SparsePattern,
    WeightFormat,
    op_mask,
)

FORMATS: dict[str, tuple[tuple[Op, ...], str]] = {
    "weights": (PRODUCTS, "a format of the weights of products"),
    "group": (PRODUCTS, "rows of packed weights that share a scale"),
    "sparsity": (PRODUCTS, "zeros among the weights of products"),
    "cache": (ATTENTION, "a format of keys and values, of attention"),
    "dealt": ((Op.GROUPED_GEMM,), "how rows are dealt to the experts of grouped products"),
    "top_k": ((Op.GROUPED_GEMM,), "how many experts of grouped products a token draws"),
    "window": ((*ATTENTION, Op.ATTENTION_BACKWARD), "keys that a query of attention looks at"),
}
"""Columns that say more than sizes: of which operations, and what they are. For others a file leaves them empty."""


def read_operations(path: Path | str) -> Operations:
    """Rows of a CSV file with the header `COLUMNS`; ``-`` is standard input, ``.gz`` is unpacked.

    Columns may stand in any order, and those that no row needs may be missing. Left empty, ``batch`` is 1, ``kv_len``
    is ``q_len`` (prefill), ``q_len`` is 1 (decode), ``kv_heads`` is ``heads``, ``causal`` holds for prefill, ``dtype``
    is bf16, ``weights`` and ``cache`` are in the operands' format, ``group`` is the whole column, ``dealt`` is even,
    ``top_k`` is 1, and ``window`` is all keys; one of as many keys as there are, or more, is read as that.

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
    columns["window"] = cells.integers("window", _size, 0)
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
    _check_packed(columns, cells)
    alone = (columns["dtype"] == PRECISIONS.index(Precision.INT4)) & ~op_mask(PRODUCTS)[op]
    if alone.any():
        row = int(np.argmax(alone))
        raise cells.error(f"int4 is of products, not of {OPS[op[row]]}", row, "dtype", value="int4")
    if ((columns["cache"] > 0) & ~wide).any():
        row = int(np.argmax((columns["cache"] > 0) & ~wide))
        rule = "attention whose keys and values are kept in another format has operands in fp16 or bf16"
        raise cells.error(rule, row, "cache", value=cells.columns["cache"][row])
    _check_draws(columns, cells)
    _check_windows(columns, cells)
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


def _check_packed(columns: dict[str, Any], cells: Cells) -> None:
    """Kernels make few formats of a code, and the rows of an MX block are given."""
    packed = columns["weights"] > 0
    beside = np.zeros((len(WEIGHT_FORMATS), len(PRECISIONS)), bool)
    for stored, operands in PACKED_BESIDE.items():
        beside[WEIGHT_FORMATS.index(stored), [PRECISIONS.index(each) for each in operands]] = True
    wrong = packed & ~beside[columns["weights"], columns["dtype"]]
    if wrong.any():
        row = int(np.argmax(wrong))
        stored = WEIGHT_FORMATS[columns["weights"][row]]
        rule = f"products with weights packed in {stored} have operands in {one_of(PACKED_BESIDE[stored])}"
        raise cells.error(rule, row, "dtype", value=str(PRECISIONS[columns["dtype"][row]]))
    blocks = np.isin(columns["weights"], IN_BLOCKS)
    wrong = blocks & ~np.isin(columns["group"], (0, MX_BLOCK))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise cells.error(f"an MX block has {MX_BLOCK} rows", row, "group", value=int(columns["group"][row]))
    columns["group"] = np.where(blocks, MX_BLOCK, columns["group"])


def one_of(names: Sequence[str]) -> str:
    """Names in a sentence: ``fp16, bf16 or int8``."""
    return " or ".join(filter(None, [", ".join(names[:-1]), str(names[-1])]))


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


def _check_windows(columns: dict[str, Any], cells: Cells) -> None:
    """A window goes back from a query's own key, and one that has all keys is none."""
    wrong = (columns["window"] > 0) & ~columns["causal"] & (columns["q_len"] != columns["kv_len"])
    if wrong.any():
        row = int(np.argmax(wrong))
        rule = "must be of causal attention (causal), or of as many queries as keys (q_len)"
        raise cells.error(rule, row, "window", value=int(columns["window"][row]))
    columns["window"] = np.where(columns["window"] >= columns["kv_len"], 0, columns["window"])


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


__all__ = ["join", "make_operations", "one_of", "operations_from_cells", "read_operations"]

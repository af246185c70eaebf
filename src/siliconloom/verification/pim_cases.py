"""Work for the bench of a PIM tile: random macros, GEMVs and an attention head, with the data that go with them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError
from siliconloom.arch.floats import patterns_of, values_of
from siliconloom.arch.pim import Macro, MacroKind, PimTile, check_macro
from siliconloom.mapper.pim.layout import GemvLayout, plan_gemv
from siliconloom.rtl.bench.pim_cases import Bytes, PimBenchCase, Rows
from siliconloom.sim.golden.pim import GoldenPim
from siliconloom.sim.pim.channel import run_channel

DOTS = 24
"""Most dot products of a row in random work: keeps a bench within seconds."""
MARGIN = 64
"""Cycles that a bench listens on after the last datum is due."""


def random_case(
    tile: PimTile, seed: int, *, dtype: DataType | None = None, transfers: int | None = None
) -> PimBenchCase:
    """Random macros of both streams with random data; computation in the lower half of the rows, transfers above.

    Parameters
    ----------
    tile
        The description.
    seed
        Of everything.
    dtype
        Operands of every GEMV; any of the tile's when ``None``.
    transfers
        Their number; up to eight when ``None``.
    """
    chance = random.Random(seed)
    rows = tile.dram.organization.rows
    buffer = tile.global_buffer // tile.dram.organization.request_bytes
    compute = [Macro(kind=MacroKind.GWRITE, columns=buffer)]
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.3:
            columns = chance.randint(1, buffer)
            compute.append(Macro(kind=MacroKind.GWRITE, columns=columns, column=chance.randint(0, buffer - columns)))
        compute.append(_random_gemv(tile, chance, dtype))
    moves = []
    wanted = chance.randint(0, 8) if transfers is None else transfers
    for _ in range(wanted if rows > 1 else 0):
        columns = chance.randint(1, min(tile.row_columns, 12))
        moves.append(
            Macro(
                kind=chance.choice([MacroKind.READ, MacroKind.WRITE]),
                bank=chance.randrange(tile.banks),
                row=chance.randrange(rows // 2, min(rows // 2 + 2, rows)),
                columns=columns,
                column=chance.randint(0, tile.row_columns - columns),
            )
        )
    macros = [*_arrivals(tile, chance, compute), *_arrivals(tile, chance, moves)]
    return with_data(tile, f"random {seed}", macros, seed)


def refresh_case(tile: PimTile, seed: int) -> PimBenchCase:
    """Both streams busy when refresh falls due."""
    rows, columns = tile.dram.organization.rows, min(tile.row_columns, 8)
    start = max(tile.dram.timing.tREFI - 40, 0)
    vector = min(columns, tile.global_buffer // tile.dram.organization.request_bytes)
    macros = [
        Macro(kind=MacroKind.GWRITE, columns=vector),
        Macro(
            kind=MacroKind.GEMV, columns=vector, rounds=max(min(3, rows // 2), 1), dtype=tile.operands[0], arrival=start
        ),
    ]
    macros += [
        Macro(
            kind=MacroKind.WRITE if number % 2 else MacroKind.READ,
            bank=3 * number % tile.banks,
            row=rows // 2 + number % (rows - rows // 2),
            columns=columns,
            arrival=start + 9 * number,
        )
        for number in range(8 if rows > 1 else 0)
    ]
    return with_data(tile, "both streams, refresh falls due", macros, seed)


def _random_gemv(tile: PimTile, chance: random.Random, dtype: DataType | None) -> Macro:
    buffer, half = tile.global_buffer // tile.dram.organization.request_bytes, tile.dram.organization.rows // 2
    while True:
        chunks = chance.choice([1, 1, chance.randint(2, 3)])
        segments = 1 if chunks > 1 else chance.randint(1, min(tile.accumulators, tile.row_columns))
        columns = chance.randint(1, max(min(tile.row_columns, DOTS) // segments, 1))
        rounds = chance.randint(1, max(min(3, half // chunks), 1))
        if rounds * chunks > max(half, 1):
            continue
        macro = Macro(
            kind=MacroKind.GEMV,
            row=chance.randint(0, max(half - rounds * chunks, 0)),
            rounds=rounds,
            chunks=chunks,
            segments=segments,
            columns=columns,
            last_columns=chance.randint(1, columns) if chunks > 1 and chance.random() < 0.5 else 0,
            column=chance.choice([0, chance.randrange(buffer)]),
            apart=segments > 1 and chance.random() < 0.5,
            dtype=dtype or chance.choice(tile.operands),
        )
        try:
            check_macro(tile, macro)
        except LoomError:
            continue
        return macro


def _arrivals(tile: PimTile, chance: random.Random, macros: Sequence[Macro]) -> list[Macro]:
    """Offered all at once, or at random, or so that they meet a refresh."""
    refresh = tile.dram.timing.tREFI
    now = chance.choice([0, 0, chance.randint(0, 60), max(refresh - chance.randint(0, 120), 0)])
    spread = chance.choice([0, 0, 20, 200])
    made = []
    for macro in macros:
        made.append(structs.replace(macro, arrival=now))
        now += chance.randint(0, spread)
    return made


def random_bytes(numbers: np.random.Generator, size: int) -> Bytes:
    """Bytes that are bf16 numbers of moderate size, now and then special ones or any pattern."""
    values = patterns_of(numbers.standard_normal(size // 2 + 1), DataType.BF16)
    kind = numbers.random()
    if kind < 0.1:
        values = numbers.integers(0, 2**16, len(values), dtype=np.uint16)
    elif kind < 0.2:
        special = np.array([0, 0x8000, 0x0001, 0x7F80, 0x00FF, 0x7F7F, 0x0080, 0x8080], np.uint16)
        values = np.where(numbers.random(len(values)) < 0.1, numbers.choice(special, len(values)), values)
    return np.ascontiguousarray(values).view(np.uint8)[:size].copy()


def with_data(tile: PimTile, name: str, macros: Sequence[Macro], seed: int) -> PimBenchCase:
    """Random contents for all rows that macros touch, and random data for what they write."""
    numbers = np.random.default_rng(seed)
    o = tile.dram.organization
    memory: Rows = {}
    for macro in macros:
        if macro.kind == MacroKind.GEMV:
            touched = range(macro.row, macro.row + macro.rounds * macro.chunks)
            keys = [(bank, row) for row in touched for bank in range(tile.banks)]
        elif macro.kind == MacroKind.GWRITE:
            keys = []
        else:
            keys = [(macro.bank, macro.row)]
        for key in keys:
            if key not in memory:
                memory[key] = random_bytes(numbers, o.row_bytes)
    data = {
        kind: tuple(random_bytes(numbers, m.columns * o.request_bytes) for m in macros if m.kind == kind)
        for kind in (MacroKind.WRITE, MacroKind.GWRITE)
    }
    return case_of(tile, name, macros, memory, data[MacroKind.WRITE], data[MacroKind.GWRITE])


def case_of(
    tile: PimTile, name: str, macros: Sequence[Macro], memory: Rows, written: Sequence[Bytes], vectors: Sequence[Bytes]
) -> PimBenchCase:
    """A case that runs for as long as the model says, and a little longer."""
    limit = run_channel(tile, macros).cycles + MARGIN
    return PimBenchCase(
        name=name, macros=tuple(macros), memory=memory, written=tuple(written), vectors=tuple(vectors), limit=limit
    )


def writes_of(tile: PimTile, rows: Rows) -> tuple[list[Macro], list[Bytes]]:
    """WRITE macros, and their data, that store rows."""
    macros = [
        Macro(kind=MacroKind.WRITE, bank=bank, row=row, columns=tile.row_columns)
        for bank, row in sorted(rows, key=lambda key: (key[1], key[0]))
    ]
    return macros, [rows[m.bank, m.row] for m in macros]


def gemv_case(tile: PimTile, n: int, k: int, dtype: DataType, seed: int) -> tuple[PimBenchCase, GemvLayout]:
    """A matrix times a vector with random elements, laid out by the mapper."""
    numbers = np.random.default_rng(seed)
    layout = plan_gemv(tile, n, k, dtype)
    if dtype == DataType.INT8:
        matrix: NDArray[Any] = numbers.integers(-128, 128, (n, k), dtype=np.int8)
        vector: NDArray[Any] = numbers.integers(-128, 128, k, dtype=np.int8)
    else:
        matrix, vector = (patterns_of(numbers.standard_normal(shape), DataType.BF16) for shape in ((n, k), (k,)))
    case = case_of(
        tile, f"gemv {dtype.value} {n}x{k}", layout.macros(), layout.place(matrix), [], layout.vectors(vector)
    )
    return case, layout


def attention_cases(tile: PimTile, tokens: int, head_dim: int, seed: int) -> tuple[list[PimBenchCase], NDArray[Any]]:
    """One attention head in bf16: keys and values are written, logits multiplied, softmax taken outside, values summed.

    Returns the two cases, before and after the softmax, and what attention gives in float64 for the same numbers. The
    probabilities of the second case come from the golden model's logits.
    """
    numbers = np.random.default_rng(seed)
    query, keys, values = (
        patterns_of(numbers.standard_normal(shape), DataType.BF16)
        for shape in ((head_dim,), (tokens, head_dim), (tokens, head_dim))
    )
    scores = plan_gemv(tile, tokens, head_dim, DataType.BF16)
    mixing = plan_gemv(tile, head_dim, tokens, DataType.BF16, row=scores.rows)
    rows = scores.place(keys) | mixing.place(np.ascontiguousarray(values.T))
    stores, data = writes_of(tile, rows)
    ready = run_channel(tile, stores).cycles
    first = case_of(
        tile,
        f"attention head: {tokens} keys and values written, logits",
        [*stores, *scores.macros(ready)],
        {},
        data,
        scores.vectors(query),
    )
    machine = GoldenPim(tile, {})
    machine.run(first.macros, first.written, first.vectors)
    logits = scores.collect(machine.results)[0].astype(np.float64) / np.sqrt(head_dim)
    weights = np.exp(logits - logits.max())
    probabilities = patterns_of(weights / weights.sum(), DataType.BF16)
    second = case_of(
        tile, "attention head: probabilities times values", mixing.macros(), rows, [], mixing.vectors(probabilities)
    )
    q, k, v = (values_of(x, DataType.BF16).astype(np.float64) for x in (query, keys, values))
    exact = np.exp(k @ q / np.sqrt(head_dim) - (k @ q / np.sqrt(head_dim)).max())
    return [first, second], exact / exact.sum() @ v

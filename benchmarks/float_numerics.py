"""Errors of the vector unit's functions in floating point against float64: ``docs/numerics.md``.

Operands are numbers of the format, results are rounded to it. A step is the distance of the format's numbers at the
exact result, or at the largest of its row where a row function's elements may be near zero; half a step is rounding
alone. Run ``python benchmarks/float_numerics.py``; takes a few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from siliconloom.arch.datatype import DataType
from siliconloom.arch.floats import Words, float_product, float_sum, narrowed, patterns_of, values_of, widened
from siliconloom.arch.vector import RISE_LIMIT
from siliconloom.render.tables import table
from siliconloom.sim.golden import float_functions as functions

FORMATS = (DataType.FP32, DataType.BF16, DataType.FP16, DataType.FP8_E4M3, DataType.FP8_E5M2)
LANES, TILE = 16, 64
LEAST = 2.0**-110
"""Below it results of activations may be zero, and their error counts in steps of this."""
Real = NDArray[np.float64]


def operands(shape: tuple[int, ...], dtype: DataType, spread: float = 1.0, seed: int = 0) -> Words:
    """Numbers of a format from a normal distribution, as fp32 patterns."""
    return widened(patterns_of(np.random.default_rng(seed).standard_normal(shape) * spread, dtype), dtype)


def real(words: Words) -> Real:
    """Numbers of fp32 patterns."""
    return words.view(np.float32).astype(np.float64)


def steps(got: Words, wanted: Real, dtype: DataType, at: Real | None = None) -> Real:
    """Errors of results, rounded to a format, in its steps at ``at``, or at the exact results."""
    layout = dtype.layout
    size = np.maximum(np.abs(wanted if at is None else at), 2.0 ** (1 - layout.bias))
    step = 2.0 ** (np.floor(np.log2(size)) - layout.fraction_bits)
    return (values_of(narrowed(got, dtype), dtype) - wanted) / step


def word(value: float) -> Words:
    """The pattern of one number."""
    return np.array([value], np.float32).view(np.uint32)


def norms(dtype: DataType) -> Iterator[tuple[str, Real]]:
    """Rows of 4,096 with and without a mean."""
    one, none = word(1)[None, :], word(0)[None, :]
    for name, centred in (("layer_norm", True), ("rms_norm", False)):
        x = float_sum(operands((100, 4096), dtype), word(0.5))
        x = widened(narrowed(x, dtype), dtype)
        got = functions.normalize(x, one, none, word(2.0**-17), LANES, centred=centred)
        moved = real(x) - real(x).mean(1, keepdims=True) * centred
        wanted = moved / np.sqrt((moved**2).mean(1, keepdims=True) + 2.0**-17)
        yield name, steps(got, wanted, dtype, np.maximum(np.abs(wanted), 1))


def softmax(dtype: DataType) -> Iterator[tuple[str, Real]]:
    """Exponents are sums, in fp32."""
    for keys in (64, 1024):
        t = (np.random.default_rng(keys).standard_normal((200, keys)) * 4).astype(np.float32)
        got = functions.softmax(t.view(np.uint32), np.ones(t.shape, bool), LANES)
        powers = 2.0 ** t.astype(np.float64)
        yield f"softmax over {keys:,}", steps(got, powers / powers.sum(1, keepdims=True), dtype)


def attention(dtype: DataType) -> Iterator[tuple[str, Real]]:
    """A softmax tile by tile, powers in the format, their products with values added up in fp32, divided in the end."""
    keys, width, rows = 1024, 16, 40
    t = (np.random.default_rng(1).standard_normal((rows, keys)) * 2).astype(np.float32)
    values = operands((keys, width), dtype)
    sums, carried = np.zeros((rows, width), np.uint32), None
    for start in range(0, keys, TILE):
        part = np.ascontiguousarray(t[:, start : start + TILE]).view(np.uint32)
        peak, total = functions.reduced(part, np.ones(part.shape, bool), LANES, carried)
        rise = 0 * peak if carried is None else np.minimum(peak - carried[0], RISE_LIMIT)
        powers = widened(narrowed(functions.powers_of(part, peak), dtype), dtype)
        sums = functions.lowered(sums, rise[:, None])
        for key in range(TILE):
            product = float_product(powers[:, key : key + 1], values[None, start + key])
            sums = float_sum(sums, product)
        carried = peak, total
    assert carried is not None
    got = float_product(sums, functions.reciprocal(carried[1])[:, None])
    exact = 2.0 ** t.astype(np.float64)
    wanted = exact / exact.sum(1, keepdims=True) @ real(values)
    yield "attention over 1,024 keys", steps(got, wanted, dtype, np.abs(wanted).max(1, keepdims=True) + 0 * wanted)


def activations(dtype: DataType) -> Iterator[tuple[str, Real]]:
    """gelu is its form with a tanh."""
    x = operands((100_000,), dtype, 3)
    wide = real(x)
    for name, cubic in (("gelu", True), ("silu", False)):
        u = wide * (2 * np.sqrt(2 / np.pi) * (1 + 0.044715 * wide**2)) if cubic else wide
        wanted = wide / (1 + np.exp(-u))
        yield name, steps(functions.activation(x, cubic=cubic), wanted, dtype, np.maximum(np.abs(wanted), LEAST))
    wanted = np.tanh(wide)
    yield "tanh", steps(functions.tanh(x), wanted, dtype, np.maximum(np.abs(wanted), LEAST))


def errors(dtype: DataType) -> dict[str, Real]:
    """Errors of each function in a format, in steps."""
    return {name: found for part in (norms, softmax, attention, activations) for name, found in part(dtype)}


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def main() -> None:
    """Print the table."""
    found = {dtype: errors(dtype) for dtype in FORMATS}
    columns = [("function", "left"), *((dtype.value, "right") for dtype in FORMATS)]
    rows = []
    for name in found[FORMATS[0]]:
        cells = []
        for dtype in FORMATS:
            each = found[dtype][name]
            cells.append(f"{_shown(np.abs(each).max())} ({_shown(np.sqrt((each**2).mean()))})")
        rows.append((name, *cells))
    Console(width=120).print(table("largest error in steps (rms)", columns, rows))


if __name__ == "__main__":
    main()

"""Errors of the vector unit's integer functions against float64, in steps of their results: ``docs/numerics.md``.

Run ``python benchmarks/numerics.py``; takes a few seconds.
"""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console

from siliconloom.arch import load_chip
from siliconloom.arch.numerics import (
    ACTIVATIONS,
    RECIPROCAL_SHIFT,
    RECIPROCALS,
    ROOT_SHIFT,
    ROOTS,
    activation_table,
    interpolated,
)
from siliconloom.render.tables import table
from siliconloom.sim.golden import functions
from siliconloom.verification.layers import LAYERS, layer_runs


def reciprocals():
    for name, entries, first, real in (
        ("127 / x, between table entries", RECIPROCALS, 128, lambda m: 127 * 2**RECIPROCAL_SHIFT / m),
        ("1 / sqrt(x), between table entries", ROOTS, 64, lambda m: 2**ROOT_SHIFT / math.sqrt(m)),
    ):
        errors = [interpolated(entries, m) / real(m) - 1 for m in range(first << 8, 1 << 16)]
        yield name, "relative", np.array(errors), f"all {len(errors):,} mantissas"


def activations():
    for function in ("gelu", "silu", "tanh"):
        errors = []
        for scale_in in (0.01, 0.03, 0.06):
            scale_out = 127 * scale_in / 127
            got = np.frombuffer(activation_table(ACTIVATIONS[function], scale_in, scale_out), np.int8)
            x = np.arange(256).astype(np.uint8).view(np.int8)
            errors.append(got - np.clip([ACTIVATIONS[function](v * scale_in) / scale_out for v in x], -128, 127))
        yield function, "steps", np.concatenate(errors), "all 256 values, 3 scales"


def softmax():
    chance = np.random.default_rng(0)
    for cols in (64, 1024, 8192):
        errors = []
        for spread in (1, 4, 10):
            sums = chance.normal(0, 10000, (200, cols)).astype(np.int64)
            multiplier, shift = 23170, 15 + round(math.log2(10000 / 256 / spread))
            got = functions.softmax(sums, multiplier, shift, np.full(200, cols), 16)
            exponent = sums * multiplier / 2**shift / 256
            powers = 2.0 ** (exponent - exponent.max(1, keepdims=True))
            errors.append((got - 127 * powers / powers.sum(1, keepdims=True)).reshape(-1))
        yield f"softmax over {cols:,}", "steps of 1/127", np.concatenate(errors), "600 random rows"


def norms():
    chance = np.random.default_rng(0)
    for name, centred in (("layer_norm", True), ("rms_norm", False)):
        errors = []
        for spread, offset in ((5, 0), (30, 20), (60, 0)):
            x = np.clip(np.rint(chance.normal(offset, spread, (100, 4096))), -128, 127).astype(np.int64)
            one, none = np.ones(4096, np.int64), np.zeros(4096, np.int64)
            z = functions.normalize(x, one, none, none, centred=centred)
            moved = x - x.mean(1, keepdims=True) * centred
            errors.append((z - 256 * moved / np.sqrt((moved**2).mean(1, keepdims=True))).reshape(-1))
        yield name, "steps of 1/256", np.concatenate(errors), "300 random rows of 4,096"


def rope():
    chance = np.random.default_rng(0)
    x, angle = chance.integers(-128, 128, (1000, 128)), chance.uniform(0, 2 * math.pi, (1000, 64))
    turns = np.empty((1000, 128), np.int64)
    turns[:, 0::2], turns[:, 1::2] = np.rint(32767 * np.cos(angle)), np.rint(32767 * np.sin(angle))
    real = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
    got = functions.rotate(x, turns)
    yield (
        "rope",
        "steps",
        np.concatenate([got[:, 0::2] - real.real, got[:, 1::2] - real.imag]).reshape(-1),
        "64,000 pairs",
    )


def layers():
    for spec in LAYERS:
        runs = layer_runs(load_chip("npu-edge-int8"), spec)
        errors = np.concatenate([(r.results - r.real).reshape(-1) for r in runs])
        yield f"a whole {spec.name} layer", "steps of 1/127 of the largest", errors, "36 tokens, random weights"


def main() -> None:
    columns = [
        ("function", "left"),
        ("unit of the error", "left"),
        ("largest", "right"),
        ("rms", "right"),
        ("over", "left"),
    ]
    rows = []
    for part in (reciprocals, activations, softmax, norms, rope, layers):
        for name, unit, errors, over in part():
            rows.append((name, unit, f"{np.abs(errors).max():.2g}", f"{np.sqrt((errors**2).mean()):.2g}", over))
    Console(width=120).print(table("errors against float64", columns, rows))


if __name__ == "__main__":
    main()

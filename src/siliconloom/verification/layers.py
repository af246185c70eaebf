"""Small transformer layers in int8: what whole-program parity is shown on.

A layer is a list of steps on named tensors, and there are three readings of the list: `forward`, in float64, which
the scales are taken from; `_Integers`, on matrices of integers, independent of any layout; and `_lower`, which writes
the steps as a Program through the mapper. The prompt and each token after it are programs of their own; keys and
values stay in memory between them. The integer reading is the oracle of the golden model, which runs the Program; the
golden model is that of the RTL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import Chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.description import NpuTile
from siliconloom.arch.errors import LoomError
from siliconloom.arch.isa import WORD_BYTES, Program
from siliconloom.arch.layout import padded
from siliconloom.arch.numerics import ACTIVATIONS, EXP2_BITS, NORM_BITS, ONE, ROPE_BITS, activation_table
from siliconloom.arch.vector import SCALAR_BYTES, VectorFunction, vector_cost
from siliconloom.mapper.chip.quantized import Cache, LayerWriter, Tensor
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.npu import GoldenMachine, scalar_bytes, turn_planes
from siliconloom.verification.image import Columns, MemoryImage, read_rows, write_rows
from siliconloom.verification.programs import RandomProgram

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
MULTIPLIER_BITS = 15
ROPE_BASE = 10000.0
"""Base of the rotary angles (Su et al., arXiv:2104.09864, equation 15)."""
EPSILON = 1e-5
"""Of the float norms; the integer ones have none."""


@dataclass(frozen=True)
class Step:
    """One operation: results in ``out``, operands in ``a`` and ``b``, parameters named after ``out``.

    ``kind`` is a vector function, or ``linear``, ``append`` (keys ``a``, values ``b``) or ``attend`` (queries ``a``).
    """

    kind: str
    out: str
    a: str
    b: str = ""


@dataclass(frozen=True)
class LayerSpec:
    """Shape of a layer.

    Parameters
    ----------
    name
        What it is called.
    hidden, heads, kv_heads, feed_forward
        Widths; ``kv_heads`` divides ``heads``.
    steps
        Operations in order, from tensor ``x`` to tensor ``y``.
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    steps: tuple[Step, ...]

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def width(self, tensor: str) -> int:
        """Columns of a tensor."""
        if tensor in ("k", "v", "kr"):
            return self.kv_heads * self.head_dim
        return self.feed_forward if tensor in ("f", "u", "g") else self.hidden


GPT2_LAYER = LayerSpec(
    "GPT-2",
    64,
    4,
    4,
    256,
    (
        Step("layer_norm", "n1", "x"),
        Step("linear", "q", "n1"),
        Step("linear", "k", "n1"),
        Step("linear", "v", "n1"),
        Step("append", "", "k", "v"),
        Step("attend", "a", "q"),
        Step("linear", "o", "a"),
        Step("add", "h", "x", "o"),
        Step("layer_norm", "n2", "h"),
        Step("linear", "f", "n2"),
        Step("gelu", "g", "f"),
        Step("linear", "d", "g"),
        Step("add", "y", "h", "d"),
    ),
)
"""Layer norm, four heads, a feed-forward network of four times the width with GELU (Radford et al., 2019)."""
LLAMA_LAYER = LayerSpec(
    "Llama",
    64,
    4,
    2,
    192,
    (
        Step("rms_norm", "n1", "x"),
        Step("linear", "q", "n1"),
        Step("linear", "k", "n1"),
        Step("linear", "v", "n1"),
        Step("rope", "qr", "q"),
        Step("rope", "kr", "k"),
        Step("append", "", "kr", "v"),
        Step("attend", "a", "qr"),
        Step("linear", "o", "a"),
        Step("add", "h", "x", "o"),
        Step("rms_norm", "n2", "h"),
        Step("linear", "f", "n2"),
        Step("linear", "u", "n2"),
        Step("gated_silu", "g", "f", "u"),
        Step("linear", "d", "g"),
        Step("add", "y", "h", "d"),
    ),
)
"""RMS norm, rotary positions, two query heads a key head, gated SiLU (Touvron et al., arXiv:2302.13971)."""

LAYERS = (GPT2_LAYER, LLAMA_LAYER)


@dataclass
class LayerRun:
    """A program with the memory it starts from, and what it must leave behind.

    Parameters
    ----------
    name
        Layer and phase.
    made
        Program and memory.
    place, expected
        Where the results lie, and what the integer reading gives: int8, (tokens, hidden).
    real
        What the float reading gives, in steps of the result's scale.
    """

    name: str
    made: RandomProgram
    place: Tensor
    expected: NDArray[np.int8]
    real: Floats
    results: NDArray[np.int8] = field(init=False)


def layer_runs(chip: Chip, spec: LayerSpec, *, tokens: int = 32, decode: int = 4, seed: int = 0) -> list[LayerRun]:
    """Programs of a prompt of ``tokens`` and of ``decode`` tokens after it, on random weights.

    Each starts from the memory that the one before leaves, by the golden model.

    Raises
    ------
    NotSupported, LoomError
        For chips on which the mapper cannot lay the operands out, see `LayerWriter`.
    AssertionError
        When the golden model's results are not those of the integer reading.
    """
    chance = np.random.default_rng(seed)
    layer = _Layer(spec, tokens + decode, chance)
    image = _Image(chip, layer, tokens, tokens + decode)
    integers, memory = image.integers, image.memory()
    runs: list[LayerRun] = []
    past = 0
    for number in range(decode + 1):
        count = tokens if number == 0 else 1
        x = layer.quantized("x", layer.tensors["x"][past : past + count])
        y = integers.run(x, past)
        write_rows(memory, image.tensors["x"], x.astype(np.int8))
        program = _lower(chip, image, count, past)
        check_program(program, chip)
        made = RandomProgram(program, memory, image.program)
        name = f"{spec.name}, prompt {count}" if number == 0 else f"{spec.name}, token {past + 1}"
        real = layer.tensors["y"][past : past + count] / layer.scales["y"]
        run = LayerRun(name, made, image.tensors["y"], np.clip(y, -128, 127).astype(np.int8), real)
        memory = made.loaded()
        GoldenMachine(chip, memory).run(program)
        run.results = read_rows(memory, run.place, count)
        if not np.array_equal(run.results, run.expected):
            raise AssertionError(f"{name}: the golden model's results are not those of the layer")
        runs.append(run)
        past += count
    return runs


# Float ---------------------------------------------------------------------------------------------------------------


class _Layer:
    """Random weights, every tensor in float64, and the scales that follow."""

    def __init__(self, spec: LayerSpec, positions: int, chance: np.random.Generator) -> None:
        self.spec, self.positions = spec, positions
        self.weights: dict[str, Floats] = {}
        self.biases: dict[str, Floats] = {}
        for step in spec.steps:
            rows, cols = spec.width(step.a), spec.width(step.out)
            if step.kind == "linear":
                self.weights[step.out] = chance.normal(0, 1 / math.sqrt(rows), (rows, cols))
                self.biases[step.out] = chance.normal(0, 0.1, cols)
            elif step.kind.endswith("norm"):
                self.weights[step.out] = chance.normal(1, 0.2, cols)
                self.biases[step.out] = chance.normal(0, 0.1, cols) * (step.kind == "layer_norm")
        self.tensors = forward(self, chance.normal(0, 1, (positions, spec.hidden)))
        self.scales = {name: float(np.abs(value).max()) / 127 for name, value in self.tensors.items()}
        for step in spec.steps:  # a rotation moves what is there; it has no scale of its own
            if step.kind == "rope":
                self.scales[step.a] = self.scales[step.out] = max(self.scales[step.a], self.scales[step.out])
        self.weight_scales = {n: np.abs(w).max(0) / 127 for n, w in self.weights.items() if w.ndim == 2}

    def quantized(self, name: str, values: Floats) -> Integers:
        return np.clip(np.rint(values / self.scales[name]), -128, 127).astype(np.int64)

    def turns(self, heads: int) -> tuple[Floats, Floats]:
        """Cosines and sines of (positions, heads * head_dim / 2)."""
        dim = self.spec.head_dim
        angles = np.arange(self.positions)[:, None] * ROPE_BASE ** (-np.arange(0, dim, 2) / dim)
        return np.tile(np.cos(angles), heads), np.tile(np.sin(angles), heads)


def forward(layer: _Layer, x: Floats) -> dict[str, Floats]:
    """Every tensor of the layer for all positions at once, causal, in float64."""
    spec, values = layer.spec, {"x": x}
    for step in spec.steps:
        a = values[step.a]
        if step.kind == "linear":
            made = a @ layer.weights[step.out] + layer.biases[step.out]
        elif step.kind.endswith("norm"):
            centred = a - a.mean(1, keepdims=True) if step.kind == "layer_norm" else a
            deviation = np.sqrt((centred**2).mean(1, keepdims=True) + EPSILON)
            made = centred / deviation * layer.weights[step.out] + layer.biases[step.out]
        elif step.kind == "rope":
            cosine, sine = layer.turns(a.shape[1] // spec.head_dim)
            made = np.empty_like(a)
            made[:, 0::2] = a[:, 0::2] * cosine - a[:, 1::2] * sine
            made[:, 1::2] = a[:, 0::2] * sine + a[:, 1::2] * cosine
        elif step.kind == "append":
            keys, stored = a, values[step.b]
            continue
        elif step.kind == "attend":
            made = np.empty_like(a)
            for head, (q, k, v) in enumerate(_heads(spec, a, keys, stored)):
                scores = np.where(np.tri(len(a), dtype=bool), q @ k.T / math.sqrt(spec.head_dim), -np.inf)
                powers = np.exp(scores - scores.max(1, keepdims=True))
                made[:, head * spec.head_dim : (head + 1) * spec.head_dim] = powers / powers.sum(1, keepdims=True) @ v
        elif step.kind == "add":
            made = a + values[step.b]
        else:
            made = np.vectorize(ACTIVATIONS[VectorFunction(step.kind)])(a)
            if step.b:
                values[f"{step.out} table"] = made
                made = made * values[step.b]
        values[step.out] = made
    return values


def _heads(spec: LayerSpec, q: Any, k: Any, v: Any) -> list[tuple[Any, Any, Any]]:
    dim, group = spec.head_dim, spec.heads // spec.kv_heads
    return [
        (
            q[:, head * dim : (head + 1) * dim],
            k[:, head // group * dim : (head // group + 1) * dim],
            v[:, head // group * dim : (head // group + 1) * dim],
        )
        for head in range(spec.heads)
    ]


# Integers ------------------------------------------------------------------------------------------------------------


def scaled(*factors: float) -> tuple[list[int], int]:
    """Integer multipliers and their common shift: each factor is multiplier / 2^shift, in 15 bits and a sign."""
    most = max(abs(f) for f in factors)
    shift = min(max(MULTIPLIER_BITS - 1 - math.floor(math.log2(most)), 0), 62) if most > 0 else 0
    if max(round(abs(f) * 2.0**shift) for f in factors) >= 1 << MULTIPLIER_BITS:
        shift -= 1
    if shift < 0:
        raise LoomError(f"scale {most:g} is beyond what a multiplier of {MULTIPLIER_BITS} bits holds")
    return [round(f * 2.0**shift) for f in factors], shift


class _Integers:
    """The layer on integers: quantised parameters, and a reading of the steps that knows nothing of tiles."""

    def __init__(self, layer: _Layer, lanes: int) -> None:
        self.layer, self.lanes, spec, scales = layer, lanes, layer.spec, layer.scales
        self.weights = {n: np.rint(layer.weights[n] / s).astype(np.int64) for n, s in layer.weight_scales.items()}
        self.columns: dict[str, Columns] = {}
        self.scalars: dict[str, tuple[int, int, int]] = {}
        self.tables: dict[str, bytes] = {}
        cosine, sine = layer.turns(spec.heads)
        self.turns = np.empty((layer.positions, spec.hidden), np.int64)
        limit = (1 << ROPE_BITS) - 1
        self.turns[:, 0::2] = np.rint(cosine * limit)
        self.turns[:, 1::2] = np.rint(sine * limit)
        for step in spec.steps:
            out, width = step.out, spec.width(step.out)
            if step.kind == "linear":
                sums = scales[step.a] * layer.weight_scales[out]
                self.columns[out] = _columns(sums / scales[out], layer.biases[out] / sums)
            elif step.kind.endswith("norm"):
                factors = layer.weights[out] / 2.0**NORM_BITS / scales[out]
                self.columns[out] = _columns(factors, layer.biases[out] / scales[out], before=False)
            elif step.kind == "attend":
                keys = next(s for s in spec.steps if s.kind == "append")
                logit = scales[step.a] * scales[keys.a] / math.sqrt(spec.head_dim)
                (m0,), shift = scaled(logit * math.log2(math.e) * 2**EXP2_BITS)
                self.scalars[out] = m0, 0, shift
                self.columns[out] = _columns(
                    np.full(spec.head_dim, scales[keys.b] / ONE / scales[out]), np.zeros(width)
                )
            elif step.kind == "add":
                (m0, m1), shift = scaled(scales[step.a] / scales[out], scales[step.b] / scales[out])
                self.scalars[out] = m0, m1, shift
            elif step.kind in ACTIVATIONS:
                middle = scales[f"{out} table"] if step.b else scales[out]
                self.tables[out] = activation_table(ACTIVATIONS[VectorFunction(step.kind)], scales[step.a], middle)
                if step.b:
                    (m0,), shift = scaled(middle * scales[step.b] / scales[out])
                    self.scalars[out] = m0, 0, shift
        kv = spec.kv_heads * spec.head_dim
        self.keys, self.values = np.zeros((0, kv), np.int64), np.zeros((0, kv), np.int64)

    def run(self, x: Integers, past: int) -> Integers:
        """Results of tokens after ``past`` others, whose keys and values are kept."""
        spec, values = self.layer.spec, {"x": x}
        for step in spec.steps:
            a, out = values[step.a], step.out
            if step.kind == "linear":
                made = functions.requantize(a @ self.weights[out], *self.columns[out])
            elif step.kind.endswith("norm"):
                bias, gamma, shifts = self.columns[out]
                made = functions.normalize(a, gamma, bias, shifts, centred=step.kind == "layer_norm")
            elif step.kind == "rope":
                made = functions.rotate(a, self.turns[past : past + len(a), : a.shape[1]])
            elif step.kind == "append":
                self.keys = np.concatenate([self.keys, a])
                self.values = np.concatenate([self.values, values[step.b]])
                continue
            elif step.kind == "attend":
                made = np.empty_like(a)
                m0, _, shift = self.scalars[out]
                valid, dim = past + 1 + np.arange(len(a)), spec.head_dim
                for head, (q, k, v) in enumerate(_heads(spec, a, self.keys, self.values)):
                    p = np.clip(functions.softmax(q @ k.T, m0, shift, valid, self.lanes), -128, 127)
                    made[:, head * dim : (head + 1) * dim] = functions.requantize(p @ v, *self.columns[out])
            elif step.kind == "add":
                m0, m1, shift = self.scalars[out]
                made = functions.scaled_sum(a, values[step.b], (m0, m1), shift)
            else:
                made = np.frombuffer(self.tables[out], np.int8).astype(np.int64)[a & 255]
                if step.b:
                    m0, _, shift = self.scalars[out]
                    made = functions.scaled_product(made, values[step.b], m0, shift)
            values[out] = np.clip(made, -128, 127)
        return values["y"]


def multipliers(factors: Floats) -> tuple[Integers, Integers]:
    """Multiplier and shift of each factor, as `scaled` has them."""
    made, shifts = np.zeros(len(factors), np.int64), np.zeros(len(factors), np.int64)
    for column, factor in enumerate(factors):
        (made[column],), shifts[column] = scaled(float(factor))
    return made, shifts


def _columns(factors: Floats, biases: Floats, *, before: bool = True) -> Columns:
    """Bias, multiplier and shift of each column; the bias is added before the product, or after it."""
    made, shifts = multipliers(factors)
    bias = np.rint(biases[: len(factors)] * (1.0 if before else 2.0**shifts)).astype(np.int64)
    return np.clip(bias, -(2**31), 2**31 - 1), made, shifts


# Memory and program --------------------------------------------------------------------------------------------------


class _Image(MemoryImage):
    """Where everything of a layer lies in main memory."""

    def __init__(self, chip: Chip, layer: _Layer, tokens: int, positions: int) -> None:
        tile = chip.tile
        assert isinstance(tile, NpuTile)
        super().__init__(tile)
        self.layer = layer
        self.integers = integers = _Integers(layer, self.lanes)
        spec, lanes = layer.spec, self.lanes
        writer = LayerWriter(chip)
        names = ["x", *(step.out for step in spec.steps if step.out)]
        self.tensors = {name: self.tensor(tokens, spec.width(name)) for name in names}
        room = padded(positions, max(lanes, self.bus))
        keys = self.take(spec.kv_heads * spec.head_dim * room)
        values = self.take(spec.kv_heads * padded(spec.head_dim, lanes) * room)
        self.cache = Cache(keys, values, spec.kv_heads, spec.head_dim, room)
        self.weight_at: dict[str, int] = {}
        self.parameters_at: dict[str, int] = {}
        self.scalars_at: dict[str, int] = {}
        for step in spec.steps:
            out = step.out
            if step.kind == "linear":
                _, n, k = writer.gemm_tiles(tokens, spec.width(out), spec.width(step.a))
                if (n, k) != writer.gemm_tiles(1, spec.width(out), spec.width(step.a))[1:]:
                    raise AssertionError("tiles of weights that depend on the number of tokens")
                self.weight_at[out] = self.weights(integers.weights[out], (k, n))
            if out in integers.columns:
                self.parameters_at[out] = self.parameters(integers.columns[out])
            if out in integers.scalars:
                m0, m1, shift = integers.scalars[out]
                line = np.zeros(padded(SCALAR_BYTES, lanes), np.uint8)
                line[:SCALAR_BYTES] = scalar_bytes(m0, m1, shift)
                table = np.frombuffer(integers.tables.get(out, b""), np.uint8)
                self.scalars_at[out] = self.hold(np.concatenate([line, table]))
            elif out in integers.tables:
                self.scalars_at[out] = self.hold(np.frombuffer(integers.tables[out], np.uint8))
        self.turns = self.hold(turn_planes(integers.turns, lanes))
        self.program = self.take(tile.sequencer.program_words * WORD_BYTES)


def _lower(chip: Chip, image: _Image, tokens: int, past: int) -> Program:
    """The program of ``tokens`` after ``past`` others."""
    spec, lanes, writer = image.layer.spec, image.lanes, LayerWriter(chip)
    tensors = {name: Tensor(tensor.base, tokens, tensor.cols, tensor.pitch) for name, tensor in image.tensors.items()}
    for step in spec.steps:
        a, out = tensors[step.a], tensors.get(step.out)
        if step.kind == "append":
            writer.append(a, tensors[step.b], image.cache, past)
            continue
        assert out is not None
        if step.kind == "linear":
            writer.gemm(a, image.weight_at[step.out], image.parameters_at[step.out], out)
        elif step.kind == "attend":
            scalars, columns = image.scalars_at[step.out], image.parameters_at[step.out]
            writer.attention(a, image.cache, past + tokens, scalars, columns, out, past=past)
        else:
            function = VectorFunction(step.kind)
            b = tensors.get(step.b)
            if function == VectorFunction.ROPE:
                pitch = 2 * padded(spec.hidden, lanes)
                b = Tensor(image.turns + past * pitch, tokens, 2 * padded(a.cols, lanes), pitch)
            size = vector_cost(function).parameter_bytes(a.cols, lanes)
            where = image.scalars_at.get(step.out, image.parameters_at.get(step.out))
            writer.elementwise(
                function,
                a,
                out,
                b=b,
                parameters=where if size else None,
                parameter_bytes=size,
                b_cols=b.cols if b else None,
            )
    return writer.finish()


__all__ = [
    "GPT2_LAYER",
    "LAYERS",
    "LLAMA_LAYER",
    "LayerRun",
    "LayerSpec",
    "Step",
    "forward",
    "layer_runs",
    "multipliers",
    "scaled",
]

"""Small transformers in a tile's format: what whole-program parity is shown on.

Each is a model of one layer, described like any other, with tokens and positions before it and a head behind. Its
prompt and each token after it are programs of their own: those that ``loom sim`` times, on a memory that `execution`
fills. There are three readings of the graph (`execution.run`): float64, an exact one without tiles or layouts, and the
Program on the golden model. The exact reading is the oracle of the golden model; the golden model is that of the RTL.
The keys and values that a token finds in memory are those of the exact reading of the tokens before it.
"""

from __future__ import annotations

import math
from zlib import crc32

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch import Chip, NotSupported
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType
from siliconloom.arch.document import Document
from siliconloom.arch.tile import NpuTile
from siliconloom.execution.image import refuse
from siliconloom.execution.run import ModelRun, run_model, vocabulary
from siliconloom.execution.walk import At
from siliconloom.execution.weights import Floats, Weights
from siliconloom.mapper.chip.banked import is_banked
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.filling import filled
from siliconloom.workloads import Graph, Operator
from siliconloom.workloads.load import read_workload
from siliconloom.workloads.precision import PrecisionName

GROUP = 16
"""Rows of a group of packed weights, where a beat has no more: they divide all products of the layers."""
LARGEST = 127
"""Of int8."""


class SmallModel(Struct, frozen=True):
    """A transformer of one layer.

    Parameters
    ----------
    name
        What it is called.
    model
        Its configuration, in YAML.
    output
        The operator that the layer ends with.
    """

    name: str
    model: str
    output: str = "layer.feed_forward_add"

    def prompt(self, tokens: int, precision: str) -> Graph:
        """The graph of a prompt."""
        return self._graph(f"phase: prefill\nsequence: {tokens}", precision)

    def token(self, context: int, precision: str) -> Graph:
        """The graph of one more token; ``context`` counts those before it and itself."""
        return self._graph(f"phase: decode\ncontext: {context}", precision)

    def _graph(self, step: str, precision: str) -> Graph:
        text = f"kind: transformer\nname: {self.name}\nprecision: {precision}\n{step}\nmodel: {self.model}"
        return read_workload(Document.parse(text, self.name), self.name)


GPT2_LAYER = SmallModel(
    "GPT-2",
    "{model_type: gpt2, n_embd: 64, n_layer: 1, n_head: 4, n_inner: 256, n_positions: 256, vocab_size: 64, "
    "activation_function: gelu_new, tie_word_embeddings: false}",
)
"""Layer norm, four heads, a feed-forward network of four times the width with GELU (Radford et al., 2019)."""
LLAMA_LAYER = SmallModel(
    "Llama",
    "{model_type: llama, hidden_size: 64, num_hidden_layers: 1, num_attention_heads: 4, num_key_value_heads: 2, "
    "intermediate_size: 192, vocab_size: 64, hidden_act: silu, tie_word_embeddings: false}",
)
"""RMS norm, rotary positions, two query heads a key head, gated SiLU (Touvron et al., arXiv:2302.13971)."""

LAYERS = (GPT2_LAYER, LLAMA_LAYER)


class LayerWeights(Weights):
    """Seeded random parameters that change what goes through them: every operator's results are as large as its input.

    A model before its training (`execution.weights.RandomWeights`) adds next to nothing to the residual stream.
    """

    def __init__(self, graph: Graph, seed: int) -> None:
        super().__init__(graph)
        self.seed = seed

    def find(self, at: At, operator: Operator, what: str, shape: tuple[int, ...]) -> Floats:
        chance = np.random.default_rng([self.seed, crc32(at.name.encode()), crc32(what.encode())])
        mean, deviation = {"weight": (0.0, 1 / math.sqrt(shape[-2:][0])), "table": (0.0, 1.0), "gamma": (1.0, 0.2)}.get(
            what, (0.0, 0.1)
        )
        return chance.normal(mean, deviation, shape)


class LayerRun(Struct):
    """A program with the memory it starts from, and what it has made.

    Parameters
    ----------
    name
        Model and phase.
    run
        The golden run; nothing in it differs from the exact reading.
    results, real
        What leaves the layer, by the golden model and in float64: (tokens, hidden), in steps of 1/127 of the largest
        value of all programs.
    """

    name: str
    run: ModelRun
    results: NDArray[np.float64]
    real: NDArray[np.float64]

    @property
    def made(self) -> LoadedProgram:
        """Program and memory."""
        return self.run.made


def layer_runs(chip: Chip, spec: SmallModel, *, tokens: int = 32, decode: int = 4, seed: int = 0) -> list[LayerRun]:
    """Programs of a prompt of ``tokens`` and of ``decode`` tokens after it, on random weights.

    Raises
    ------
    NotSupported, LoomError
        For chips that the mapper, or the values of a model, do not fit.
    AssertionError
        When the golden model's results are not those of the exact reading.
    """
    chance = np.random.default_rng(seed)
    stated = _precision(chip)
    graphs = [spec.prompt(tokens, stated), *(spec.token(tokens + number, stated) for number in range(1, decode + 1))]
    numbers = chance.integers(0, vocabulary(graphs[0]), (1, tokens + decode))
    weights, runs = LayerWeights(graphs[0], seed), list[LayerRun]()
    for number, graph in enumerate(graphs):
        name = f"{spec.name}, prompt {tokens}" if number == 0 else f"{spec.name}, token {tokens + number}"
        run = run_model(_mapped(chip, graph), weights, numbers[:, : tokens + number], keep=True)
        if run.differing:
            raise AssertionError(f"{name}: the golden model's results are not those of the exact reading")
        results, real = (run.tensors[f"{reading}/{spec.output}/0"] for reading in ("golden", "float64"))
        runs.append(LayerRun(name, run, results, real))
    step = max(float(np.abs(each.real).max()) for each in runs) / LARGEST
    for each in runs:
        each.results, each.real = each.results / step, each.real / step
    return runs


def _precision(chip: Chip) -> str:
    """A format that the chip computes in, with weights packed where it has such: in the shortest codes."""
    tile = chip.tile
    if not isinstance(tile, NpuTile):
        return DataType.INT8.value
    if tile.array.weights is None:
        return (tile.array.circuit_format or tile.circuit_format).value
    code = min(tile.array.weights.formats, key=lambda dtype: dtype.bits)
    stated = next(precision for precision in PrecisionName if precision.weights is code)
    stated = PrecisionName.W4A8 if tile.shares else stated
    return stated.value if stated.in_blocks else f"{stated.value}\nweight_group: {max(GROUP, tile.array.load_rows)}"


def _mapped(chip: Chip, graph: Graph) -> MappedWorkload:
    """The mapping that ``loom sim`` times, of a program that the chip's tile runs."""
    mapped = map_workload(chip, graph, Stopwatch(chip), search=False, channel=False)
    refuse(mapped)
    check_program(mapped.program, chip)
    return mapped


def channel_runs(chip: Chip, spec: SmallModel, *, tokens: int = 32, seed: int = 0) -> tuple[str, LoadedProgram]:
    """A program of a token behind so many, whose attention the chip's channel computes, with made-up values.

    Raises
    ------
    NotSupported
        Where the channel does not compute it, with the reason.
    """
    there = chip.model_copy(update={"attention": "channel"})
    mapped = map_workload(there, spec.token(tokens + 1, _precision(chip)), Stopwatch(chip), search=False)
    if not is_banked(mapped.graph):
        raise NotSupported("; ".join(mapped.notes))
    check_program(mapped.program, chip)
    return f"{spec.name}, token {tokens + 1}, channel", filled(mapped, seed)


__all__ = [
    "GPT2_LAYER",
    "LAYERS",
    "LLAMA_LAYER",
    "LayerRun",
    "LayerWeights",
    "SmallModel",
    "channel_runs",
    "layer_runs",
]

"""Arrays in short formats between elements in fp32, in whole models: golden runs are exact readings.

What shares an exponent does not depend on what a mapping keeps of sums, or gates.
"""

import numpy as np
import pytest

from siliconloom.arch import load_chip
from siliconloom.execution.run import lengths, run_model
from siliconloom.execution.weights import RandomWeights
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import load_workload

TILE = {"rows": 4, "cols": 8, "load_rows": 2}
GPT = [("model.n_embd", "64"), ("model.n_head", "4"), ("model.vocab_size", "200"), ("layers", "1")]
LLAMA = [
    ("model.hidden_size", "64"),
    ("model.num_attention_heads", "4"),
    ("model.num_key_value_heads", "2"),
    ("model.vocab_size", "200"),
    ("layers", "1"),
]


@pytest.mark.parametrize(
    ("name", "operand", "model", "sets"),
    [
        # sums of a part of the last block of keys are kept
        ("npu-edge-w8a8", "int8", "gpt2", [*GPT, ("sequence", "32")]),
        ("npu-edge-w8a8", "int16", "gpt2", [*GPT, ("sequence", "32")]),
        ("npu-edge-w8a8", "int8", "gpt2", [*GPT, ("phase", "decode"), ("context", "27")]),
        ("npu-edge-w8a8", "int4", "gpt2", [*GPT, ("phase", "decode"), ("context", "27")]),
        ("npu-edge-w8a8", "int8", "llama3-8b", [*LLAMA, ("sequence", "13"), ("model.intermediate_size", "37")]),
        ("npu-edge-w8a8", "int4", "llama3-8b", [*LLAMA, ("sequence", "13"), ("model.intermediate_size", "37")]),
        ("npu-edge-w8a8", "int16", "llama3-8b", [*LLAMA, ("sequence", "13"), ("model.intermediate_size", "37")]),
        ("npu-edge-w8a8", "fp8_e4m3", "gpt2", [*GPT, ("phase", "decode"), ("context", "27")]),
        ("npu-edge-w8a8", "fp8_e5m2", "llama3-8b", [*LLAMA, ("sequence", "13"), ("model.intermediate_size", "37")]),
        # halves that end in the middle of a panel
        (
            "npu-edge-w4a8",
            "int8",
            "llama3-8b",
            [
                *LLAMA,
                ("sequence", "13"),
                ("precision", "w4a8"),
                ("weight_group", "4"),
                ("model.intermediate_size", "52"),
            ],
        ),
    ],
)
def test_a_golden_run_is_the_exact_reading(name, operand, model, sets):
    array = TILE | {"operands": [operand]}
    chip = load_chip(name, [("tile.vector.lanes", "4"), *((f"tile.array.{key}", str(v)) for key, v in array.items())])
    mapped = map_workload(chip, load_workload(model, sets), Stopwatch(chip), search=False)
    tokens = np.random.default_rng(0).integers(0, 200, lengths(mapped.graph)[:2])
    assert run_model(mapped, RandomWeights(mapped.graph, 0), tokens).differing == 0


class SmallWeights(RandomWeights):
    """Weights that fp8 has no numbers for, as small as they are, and no biases beside them."""

    def matrix(self, at, operator):
        return super().matrix(at, operator) * np.float32(2.0**-14)

    def bias(self, at, operator):
        return 0 * super().bias(at, operator)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("operand", ["int4", "int8", "int16", "fp8_e4m3", "fp8_e5m2"])
def test_weights_of_any_size_have_a_scale_for_each_column(operand):
    """Of small ones nothing would be left, and all of a product would be its error."""
    chip = load_chip("npu-edge-w8a8", [("tile.array.operands", f"[{operand}]")])
    graph = load_workload("gpt2", [*GPT, ("sequence", "8")])
    mapped = map_workload(chip, graph, Stopwatch(chip), search=False)
    tokens = np.random.default_rng(0).integers(0, 200, lengths(mapped.graph)[:2])
    found = run_model(mapped, SmallWeights(mapped.graph, 0), tokens)
    assert found.differing == 0
    (error,) = (row.relative_rms for row in found.rows if row.name == "layer.qkv")
    assert error is not None
    assert error < 0.3

"""Small transformers in int8: the program computes what the model says, and that is close to float64."""

import numpy as np
import pytest

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType
from siliconloom.execution.run import run_model
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip.engine import run
from siliconloom.verification.layers import LAYERS, LLAMA_LAYER, LayerWeights, layer_runs
from siliconloom.workloads import Gemm

SMALL = [
    ("tile.array.rows", "8"),
    ("tile.array.cols", "8"),
    ("tile.vector.lanes", "8"),
    ("tile.dma.bytes_per_cycle", "16"),
    ("memory.dram.access_bytes", "16"),
    ("tile.scratchpad.capacity", "64 KiB"),
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", LAYERS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(("chip", "tokens", "decode"), [((), 32, 4), (SMALL, 16, 2), (SMALL, 24, 9)])
def test_programs_of_a_layer_compute_the_layer(spec, chip, tokens, decode):
    described = load_chip("npu-edge-int8", list(chip))
    runs = layer_runs(described, spec, tokens=tokens, decode=decode, seed=tokens)
    assert [each.name for each in runs] == [
        f"{spec.name}, prompt {tokens}",
        *(f"{spec.name}, token {tokens + 1 + number}" for number in range(decode)),
    ]
    for each in runs:
        check_program(each.made.program, described)
        assert each.run.differing == 0
        assert each.results.shape == (tokens if each is runs[0] else 1, 64)
        error = each.results - each.real
        assert np.sqrt((error**2).mean()) < 2, "steps of 1/127 of the largest result"
        assert np.corrcoef(each.results.reshape(-1), each.real.reshape(-1))[0, 1] > 0.995


@pytest.mark.slow(seconds=1)
def test_every_operator_of_a_layer_is_compared():
    """Among them what a prompt and a token leave in the cache, and what leaves the head."""
    for spec in LAYERS:
        for each in layer_runs(load_chip("npu-edge-int8"), spec, decode=1):
            graph = each.run.mapped.graph
            compared = {name for row in each.run.rows for name in (row.task, *row.fused)}
            assert compared >= {operator.name for operator in graph.operators()}
            assert all(row.values > 0 for row in each.run.rows)
            kept = [row.values for row in each.run.rows if row.name.startswith("layer.kv_append")]
            attention = graph.dataflow["layer.attention"]
            assert kept == [attention.kv_len * attention.kv_heads * attention.head_dim] * 2


def test_a_token_reads_the_keys_and_values_of_those_before_it():
    """Another prompt changes what the same token leaves behind."""
    chip, graph = load_chip("npu-edge-int8"), LLAMA_LAYER.token(12, DataType.INT8)
    mapped = map_workload(chip, graph)
    tokens = np.random.default_rng(1).integers(0, 64, (1, 12))
    other = tokens.copy()
    other[0, :6] = (other[0, :6] + 1) % 64
    name = f"float64/{LLAMA_LAYER.output}/0"
    first, second = (run_model(mapped, LayerWeights(graph, 0), each, keep=True) for each in (tokens, other))
    assert first.differing == second.differing == 0
    assert np.abs(first.tensors[name] - second.tensors[name]).max() > 0.1
    assert not np.array_equal(first.made.memory, second.made.memory)


@pytest.mark.slow(seconds=1)
def test_a_layer_fits_the_datacentre_npu():
    """Rotations of 96 columns on 128 lanes among it: a table's rows are whole lines."""
    for spec in LAYERS:
        layer_runs(load_chip("npu-datacenter"), spec, decode=1)


@pytest.mark.slow(seconds=2)
def test_a_layer_takes_at_least_what_its_products_and_bytes_need():
    chip = load_chip("npu-edge-int8")
    for spec in LAYERS:
        prompt, *rest = layer_runs(chip, spec)
        products = [o for o in spec.token(33, DataType.INT8).operators() if isinstance(o, Gemm) and o.name != "head"]
        linear = sum(product.k * product.n for product in products)
        assert run(prompt.made.program, chip).cycles > 32 * linear / chip.tile.array.rows**2
        assert all(run(each.made.program, chip).cycles > linear / chip.tile.dma.bytes_per_cycle for each in rest)


@pytest.mark.slow
@pytest.mark.parametrize("bus", [16, 128, 256])
@pytest.mark.parametrize("side", [4, 8, 32])
def test_layers_fit_any_bus(side, bus):
    """Rows that a wide bus may not take whole are moved in columns of them."""
    sizes = [(f"tile.array.{name}", str(side)) for name in ("rows", "cols")] + [("tile.vector.lanes", str(side))]
    buses = [("tile.dma.bytes_per_cycle", str(bus)), ("memory.dram.access_bytes", str(bus))]
    chip = load_chip("npu-edge-int8", sizes + buses)
    for spec in LAYERS:
        layer_runs(chip, spec, decode=2)


def test_buffers_that_are_too_small_are_refused():
    chip = load_chip("npu-edge-int8", [("tile.accumulator.capacity", "64 B")])
    with pytest.raises(LoomError, match=r"tile.accumulator.capacity"):
        layer_runs(chip, LAYERS[0])


@pytest.mark.slow(seconds=1)
def test_what_no_circuit_computes_is_refused():
    chip = load_chip("npu-edge-int8", [("tile.array.operands", "fp32")])
    with pytest.raises(LoomError, match="values in fp32; there are circuits for int8, bf16"):
        layer_runs(chip, LAYERS[0])

"""Transformer layers in int8: the program computes what the layer says, and that is close to float64."""

import numpy as np
import pytest

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.sim.chip.engine import run
from siliconloom.verification.layers import LAYERS, layer_runs, scaled

SMALL = [
    ("tile.array.rows", "8"),
    ("tile.array.cols", "8"),
    ("tile.vector.lanes", "8"),
    ("tile.dma.bytes_per_cycle", "16"),
    ("memory.dram.access_bytes", "16"),
    ("tile.scratchpad.capacity", "64 KiB"),
]


@pytest.mark.parametrize("spec", LAYERS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(("chip", "tokens", "decode"), [((), 32, 4), (SMALL, 16, 2), (SMALL, 24, 9)])
def test_programs_of_a_layer_compute_the_layer(spec, chip, tokens, decode):
    described = load_chip("npu-edge", list(chip))
    runs = layer_runs(described, spec, tokens=tokens, decode=decode, seed=tokens)
    assert len(runs) == decode + 1
    for each in runs:
        check_program(each.made.program, described)
        assert np.array_equal(each.results, each.expected)
        error = each.results - np.clip(each.real, -128, 127)
        assert np.sqrt((error**2).mean()) < 2, "steps of 1/127 of the largest result"
        assert np.corrcoef(each.results.reshape(-1), each.real.reshape(-1))[0, 1] > 0.995


def test_a_layer_fits_the_datacentre_npu():
    for spec in LAYERS:
        layer_runs(load_chip("npu-datacenter"), spec, decode=1)


def test_a_layer_takes_at_least_what_its_products_and_bytes_need():
    chip = load_chip("npu-edge")
    for spec in LAYERS:
        prompt, *rest = layer_runs(chip, spec)
        linear = sum(spec.width(s.a) * spec.width(s.out) for s in spec.steps if s.kind == "linear")
        assert run(prompt.made.program, chip).cycles > 32 * linear / chip.tile.array.rows**2
        assert all(run(each.made.program, chip).cycles > linear / chip.tile.dma.bytes_per_cycle for each in rest)


@pytest.mark.parametrize("bus", [16, 128, 256])
@pytest.mark.parametrize("side", [4, 8, 32])
def test_layers_fit_any_bus(side, bus):
    """Rows that a wide bus may not take whole are moved in columns of them."""
    sizes = [(f"tile.array.{name}", str(side)) for name in ("rows", "cols")] + [("tile.vector.lanes", str(side))]
    buses = [("tile.dma.bytes_per_cycle", str(bus)), ("memory.dram.access_bytes", str(bus))]
    chip = load_chip("npu-edge", sizes + buses)
    for spec in LAYERS:
        layer_runs(chip, spec, decode=2)


def test_scores_that_do_not_fit_the_accumulator_are_refused():
    chip = load_chip("npu-edge", [("tile.accumulator.capacity", "4 KiB")])
    with pytest.raises(LoomError, match=r"scores of 32 tokens over 32 positions do not fit half of tile.accumulator"):
        layer_runs(chip, LAYERS[0])


def test_what_the_mapper_cannot_lay_out_is_refused():
    chip = load_chip("npu-edge", [("tile.array.dataflow", "output_stationary"), ("tile.array.load_rows", "1")])
    with pytest.raises(NotSupported, match="weight-stationary"):
        layer_runs(chip, LAYERS[0])


@pytest.mark.parametrize("factors", [(0.5,), (1.0,), (0.99999,), (1e-7, 3e-3), (100.0, -1.0), (0.0,)])
def test_factors_become_multipliers_of_fifteen_bits(factors):
    multipliers, shift = scaled(*factors)
    for multiplier, factor in zip(multipliers, factors, strict=True):
        assert abs(multiplier) < 1 << 15
        assert abs(multiplier / 2**shift - factor) <= max(map(abs, factors)) / 2**14

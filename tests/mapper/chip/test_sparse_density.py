"""Fewer weights are never slower, whatever share of their blocks is kept."""

import pytest

from siliconloom.arch import load_chip
from siliconloom.evaluate.chip import simulate
from siliconloom.workloads import load_workload


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("skips", ["true", "false"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_blocks_read_no_more_than_dense_weights_do(phase, skips):
    """A tile of kept blocks ends with a whole beat, however many bits say where they stood."""
    chip = load_chip("npu-edge", [("tile.array.sparsity", f"{{patterns: [2of4, block], skips: {skips}}}")])
    stated = [("precision", "bf16"), ("phase", phase), ("layers", "1")]
    dense = simulate(chip, load_workload("smollm2-135m", stated)).seconds
    times = []
    for density in ("0.9375", "0.5", "0.25", "0.0625"):
        sparse = [("weight_sparsity", "block"), ("weight_block", "32"), ("weight_density", density)]
        times.append(simulate(chip, load_workload("smollm2-135m", [*stated, *sparse])).seconds)
    for more, fewer in zip([dense, *times[:-1]], times, strict=True):
        assert fewer <= 1.01 * more

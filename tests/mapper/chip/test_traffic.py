"""What products of prompts move, beside what the buffers make any mapping move (`benchmarks.traffic`)."""

import pytest

from siliconloom.arch import load_chip
from siliconloom.arch.datatype import DataType
from siliconloom.mapper.chip.bounds import least_traffic
from siliconloom.workloads import Gemm

# benchmarks are part of a checkout, not of the installed package
products = pytest.importorskip("benchmarks.traffic").products


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("chip", "model", "length", "objective", "most"),
    [
        ("npu-datacenter", "llama3-8b", 2048, "time", 1.8),
        ("npu-datacenter", "llama3-8b", 512, "traffic", 1.2),
        ("npu-balanced", "llama3-8b", 512, "traffic", 1.05),
        ("npu-edge-int8", "gpt2", 128, "time", 1.9),
        ("npu-edge-int8", "llama2-7b", 128, "traffic", 1.15),  # 1.28 before a part of the depth stayed
        ("npu-datacenter", "smollm2-135m", 2048, "traffic", 1.1),  # 2.8 where rows came in pieces of an access each
    ],
)
def test_products_of_a_prompt_move_hardly_more_than_they_must(chip, model, length, objective, most):
    """3.5, 1.21, 1.08 and 2.5 times that before rows stayed in both slots; never less than the bound says."""
    _, found = products(chip, model, length, objective)
    assert all(each.ratio >= 1 for each in found)
    assert sum(each.moved for each in found) <= most * sum(each.least for each in found)


@pytest.mark.parametrize("rows", [384, 1024, 2048])
def test_the_bound_of_what_is_read_counts_one_tile_of_several(rows):
    """No tile reads what another holds: eight tiles of 3 MiB read as much as one of them that does all their work."""
    chip = load_chip("tpu-v4")
    gemm = Gemm(name="it", block="it", precision=DataType.BF16, m=rows, n=4096, k=4096, weight=True)
    one = chip.model_copy(update={"tile_count": 1})
    assert least_traffic(one, gemm, ()) == least_traffic(chip, gemm, ())
    held = min(chip.tile.scratchpad.capacity // (2 * 4096), rows)
    assert least_traffic(chip, gemm, ()) >= 0.9 * 2 * 4096 * (2 * rows + rows / held * 4096)

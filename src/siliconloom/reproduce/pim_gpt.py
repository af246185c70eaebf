"""PIM-GPT: every parameter of a token is read once, by multipliers beside the banks of GDDR6.

A plausibility band, not a reproduction: the publication compares with measured GPUs, whose distance from their memory's
bandwidth is not known here. What is simulated, command by command on the library's ``pim-gpt`` chip, is every product
of a token: vectors into the channels' buffers, rows opened under the standard's own limits, all banks of a channel at
work, results read out, refresh. Attention and the small chip for everything that is not a product are left out.
"""

from __future__ import annotations

from functools import cache

from siliconloom.arch import DataType, load_chip
from siliconloom.arch.pim import PimTile
from siliconloom.mapper.offload import weight_macros
from siliconloom.reproduce.card import Card, Row
from siliconloom.sim.pim import run_channel

CHIP = "pim-gpt"
VALUE_BYTES = 2
T4 = 320 * 10**9
"""Bytes per second of a T4's memory (NVIDIA data sheet)."""
VOCABULARY = 50257
MODELS = {
    "GPT2-S": (12, 768), "GPT2-M": (24, 1024), "GPT2-L": (36, 1280), "GPT2-XL": (48, 1600),
    "GPT3-S": (12, 768), "GPT3-M": (24, 1024), "GPT3-L": (24, 1536), "GPT3-XL": (24, 2048),
}  # fmt: skip
"""Layers and width."""

GPU = (
    "the published figures are against measured GPUs at batch 1; ours is against the GPU's memory at its full rate, "
    "which those reach to a small part"
)


def products(layers: int, width: int) -> list[tuple[int, int, int]]:
    """Rows, columns and number of the weight matrices: queries, keys and values; output; feed-forward; vocabulary."""
    return [
        (3 * width, width, layers), (width, width, layers), (4 * width, width, layers), (width, 4 * width, layers),
        (VOCABULARY, width, 1),
    ]  # fmt: skip


def parameters(layers: int, width: int) -> int:
    """Elements of all weight matrices."""
    return sum(rows * columns * times for rows, columns, times in products(layers, width))


def banks() -> PimTile:
    """The library chip's memory."""
    tile = load_chip(CHIP).pim
    assert tile is not None
    return tile


def internal_bandwidth() -> float:
    """Bytes per second of all multipliers."""
    return banks().peak_macs * VALUE_BYTES * load_chip(CHIP).clock


@cache
def token_seconds(layers: int, width: int) -> float:
    """Time of all products of a token, the rows of each shared by the channels."""
    tile, cycles = banks(), 0
    for rows, columns, times in products(layers, width):
        macros = weight_macros(tile, -(-rows // tile.channels), columns, 1, DataType.BF16)
        cycles += times * run_channel(tile, macros).cycles
    return cycles / load_chip(CHIP).clock


def card() -> Card:
    """Derive the internal bandwidth, the floor of the largest model, and the speed over a GPU's memory."""
    largest = MODELS["GPT3-XL"]
    floor = parameters(*largest) * VALUE_BYTES / internal_bandwidth()
    gains = [parameters(*model) * VALUE_BYTES / T4 / token_seconds(*model) for model in MODELS.values()]
    rows = (
        Row("internal bandwidth, TB/s", internal_bandwidth() / 1e12, 4.1, 0.01),
        Row("least time of a token, 1.3B, ms", floor * 1e3, 0.63, 0.05),
        Row("time of a token's products, simulated, 1.3B, ms", token_seconds(*largest) * 1e3, 0.63, 0.0,
            sense="at least"),
        Row("speed over T4, least of eight models", min(gains), 41.0, 0.2, GPU),
        Row("speed over T4, most of eight models, below the published most", max(gains), 137.0, 0.0, sense="at most"),
    )  # fmt: skip
    return Card(
        "pim-gpt",
        "PIM-GPT: decode of GPT2 and GPT3 up to 1.4B in GDDR6, batch 1",
        "Wu, Wang, Lu, PIM-GPT: a hybrid process in memory accelerator for autoregressive transformers, 2024",
        rows,
    )

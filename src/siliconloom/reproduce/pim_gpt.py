"""PIM-GPT: every parameter of a token is read once, by multipliers beside the banks of GDDR6.

A plausibility band, not a reproduction: the publication compares with measured GPUs, whose distance from their memory's
bandwidth is not known here. What is derived is the time that the banks need: rows are opened under the standard's own
limits, all banks of a channel multiply together, then the rows are closed. Parameters are spread evenly; attention, the
small chip for everything that is not a product, and the transfer of vectors are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from siliconloom.arch.dram import load_dram
from siliconloom.reproduce.card import Card, Row

CHANNELS, BANKS, ROW_BYTES, LANES, CLOCK = 8, 16, 2048, 16, 10**9
"""As the publication states them (from memory of it, checked against the stated 4.1 TB/s)."""
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


@dataclass(frozen=True)
class RowTime:
    """Nanoseconds of a row in all banks of a channel: opening them, the multiplications, closing."""

    opening: float
    multiplying: float
    closing: float

    @property
    def total(self) -> float:
        return self.opening + self.multiplying + self.closing


def row_time() -> RowTime:
    """All banks of a channel: activations at most four per tFAW and tRRD apart, a column per clock, precharge."""
    dram = load_dram("gddr6")
    timing, period = dram.timing, dram.clock_period / 1000
    starts = list[int]()
    for bank in range(BANKS):
        earliest = starts[-1] + timing.tRRD_S if starts else 0
        if bank >= 4:
            earliest = max(earliest, starts[bank - 4] + timing.tFAW)
        starts.append(earliest)
    columns = ROW_BYTES // (LANES * VALUE_BYTES)
    return RowTime((starts[-1] + timing.tRCD) * period, columns / CLOCK * 1e9, timing.tRP * period)


def parameters(layers: int, width: int) -> int:
    """Parameters of the products: 12 d^2 a layer (attention 4, feed-forward 8), and the vocabulary."""
    return 12 * layers * width**2 + VOCABULARY * width


def internal_bandwidth() -> int:
    """Bytes per second of all multipliers."""
    return CHANNELS * BANKS * LANES * VALUE_BYTES * CLOCK


def token_seconds(layers: int, width: int) -> float:
    """Time of a token: its parameters' rows, the same number in each bank."""
    rows = -(-parameters(layers, width) * VALUE_BYTES // (CHANNELS * BANKS * ROW_BYTES))
    return rows * row_time().total * 1e-9


def card() -> Card:
    """Derive the internal bandwidth, the floor of the largest model, and the speed over a GPU's memory."""
    largest = MODELS["GPT3-XL"]
    floor = parameters(*largest) * VALUE_BYTES / internal_bandwidth()
    gains = [parameters(*model) * VALUE_BYTES / T4 / token_seconds(*model) for model in MODELS.values()]
    rows = (
        Row("internal bandwidth, TB/s", internal_bandwidth() / 1e12, 4.1, 0.01),
        Row("least time of a token, 1.3B, ms", floor * 1e3, 0.63, 0.05),
        Row("time of a token with rows opened and closed, 1.3B, ms", token_seconds(*largest) * 1e3, 0.63, 0.0,
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

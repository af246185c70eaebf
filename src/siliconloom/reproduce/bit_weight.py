"""Tensor engines in the bit-weight dimension: digits of operands, and what elements without an adder gain.

Digits are enumerated (`arch.digits`). Clocks and areas are ratios: each published pair of designs in its own
technology, the fastest run of each that met its clock, beside our pair in ours. Ours were synthesized by ``python -m
benchmarks.elements`` and kept; nothing here synthesizes. Published arrays have 16 x 16 elements, ours
8 x 8.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from importlib.resources import files
from typing import Any

from siliconloom.arch.datatype import DataType
from siliconloom.arch.digits import mean_digits
from siliconloom.reproduce.card import Card, CardRow

MEANS = {10: 1.7619, 20: 2.1148, 30: 2.3347, 40: 2.4903, 50: 2.6047, None: 2.918}
"""Digits of an int8 operand that are not zero, by standard deviation; ``None``: of all values alike."""
BOOTH = 3.0
TOLERANCE = 0.1
CHAINED = (
    "the longest path of ours, 10 cells of an element and 18 of an array, ends in the chain by which sums leave; the "
    "published elements end at their accumulators"
)
AHEAD = (
    "our adders, whose carries look ahead so that they are as fast as the published ones, take more of an element, so "
    "there is more to save"
)
DRAINED = (
    "flip-flops of our element grow 1.73 times, as its drain chain carries both numbers of a sum; registers of the "
    "published array grow 1.25 times, and its logic shrinks by a fifth"
)
PAIRS = {
    "element": ("element", "OPT1/systolic_array_os/mac_pe", "OPT1/systolic_array_os/opt1_pe"),
    "output stationary": (
        "array os",
        "OPT1/systolic_array_os/array_mac_based",
        "OPT1/systolic_array_os/array_opt1_based",
    ),
    "weight stationary": (
        "array ws",
        "OPT1/systolic_array_ws/array_mac_based",
        "OPT1/systolic_array_ws/array_opt1_based",
    ),
}
"""Our designs but for the kind of element, and the published ones with a multiply-accumulate and with OPT1."""
CAUSES = {"output stationary": (CHAINED, DRAINED), "weight stationary": ("", AHEAD)}
"""Why clock and area of a pair lie elsewhere."""


def card() -> Card:
    """Digits, and ratios of carry-save elements to those with an adder."""
    rows = [
        CardRow(f"digits that are not zero [{_spread(sigma)}]", mean_digits(DataType.INT8, sigma), published, 1e-4)
        for sigma, published in MEANS.items()
    ]
    rows.append(CardRow("digits that are not zero [Booth's, all values]", booth_digits(), BOOTH, 1e-9))
    for name, (own, plain, saved) in PAIRS.items():
        before, after = (elements()[f"{own}, {kind}"] for kind in ("multiply_add", "carry_save"))
        (clock, area), (faster, larger) = fastest(plain), fastest(saved)
        clock_cause, area_cause = CAUSES.get(name, ("", ""))
        gain = after["mhz"] / before["mhz"]
        rows.append(CardRow(f"clock, carry-save over adder [{name}]", gain, clock / faster, TOLERANCE, clock_cause))
        grown = after["area"] / before["area"]
        rows.append(CardRow(f"area, carry-save over adder [{name}]", grown, larger / area, TOLERANCE, area_cause))
    serial = elements()["element, digit_serial"]["mhz"] / elements()["element, multiply_add"]["mhz"]
    column = fastest(PAIRS["element"][1])[0] / fastest("OPT3_OPT4C/array")[0]
    rows.append(CardRow("clock, digit-serial over adder [element]", serial, column, TOLERANCE, CHAINED))
    return Card(
        "bit-weight",
        "Tensor engines in the bit-weight dimension: digits of operands, sums without an adder",
        "Exploring the Performance Improvement of Tensor Processing Engines through Transformation in the Bit-weight "
        "Dimension of MACs, HPCA 2025; 45 reports of synthesis from the authors' repository",
        tuple(rows),
    )


def booth_digits() -> float:
    """Digits that are not zero of Booth's recoding of all int8 values: two bits and the one below, not all alike."""
    counts = [sum((value << 1) >> 2 * place & 7 not in (0, 7) for place in range(4)) for value in range(256)]
    return sum(counts) / len(counts)


def fastest(design: str) -> tuple[float, float]:
    """Period in ns and area in um2 of the fastest published run of a design that met its clock."""
    runs = [line for line in published() if line["design"] == design and line["met"] == "yes"]
    period, area = min((float(line["period_ns"]), float(line["cells_um2"])) for line in runs)
    return period, area


@cache
def published() -> list[dict[str, str]]:
    """Reports of synthesis, a line each."""
    return list(csv.DictReader(_text("synthesis.csv").splitlines()))


@cache
def elements() -> dict[str, dict[str, Any]]:
    """Our own designs by name."""
    found: dict[str, dict[str, Any]] = json.loads(_text("elements.json"))
    return found


def _text(name: str) -> str:
    return files("siliconloom").joinpath(f"reproduce/data/bit-weight/{name}").read_text("utf-8")


def _spread(sigma: float | None) -> str:
    return "all values" if sigma is None else f"standard deviation {sigma}"

"""FuseMax: attention in one pass over the keys, on an array whose elements also take maxima and exponentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean

from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.fusemax_events import fusemax_event_latency
from siliconloom.reproduce.fusemax_model import (
    FusemaxOutcome,
    cascade,
    flat,
    flat_linear,
    fusemax,
    fusemax_stalled,
    linear,
    unfused,
)
from siliconloom.reproduce.fusemax_tables import LENGTHS, MODELS, Model, published

CLOSED = 1e-3
"""Allowed error of a closed form."""
EVENTS = 0.05
"""Allowed error of the event simulation."""
MEANS = 0.01
"""Allowed error of means that were published with two digits."""

Dataflow = Callable[[Model, int], FusemaxOutcome]

NOT_ENERGY = (
    "energy is not modelled: the published figures come from Accelergy's component tables, which are no part of this"
)


def table_rows(table: str, what: str, dataflow: Dataflow) -> Iterator[CardRow]:
    """Latency, traffic and utilisation of every row of a published table."""
    for found in published(table):
        ours = dataflow(found.model, found.length)
        place = f"[{found.model.name} {found.length_name}]"
        yield CardRow(f"{what}: latency, s {place}", ours.latency, found.latency, CLOSED)
        yield CardRow(f"{what}: traffic, B {place}", ours.traffic, found.traffic, CLOSED)
        if found.util_2d:
            yield CardRow(f"{what}: 2D array in use {place}", ours.util_2d, found.util_2d, CLOSED)
            yield CardRow(f"{what}: 1D array in use {place}", ours.util_1d, found.util_1d, CLOSED)


def speedup(base: Dataflow, *, end_to_end: bool) -> float:
    """Mean speed of FuseMax over ``base``, four models and six lengths; with the linear layers, or attention alone."""
    ratios = []
    for model in MODELS:
        for length in LENGTHS.values():
            times = [base(model, length).latency, fusemax(model, length).latency]
            if end_to_end:
                times = [times[0] + flat_linear(model, length).latency, times[1] + linear(model, length).latency]
            ratios.append(times[0] / times[1])
    return mean(ratios)


def card() -> Card:
    """Derive every row of the artifact's tables for FuseMax and its two ablations, and the published means."""
    rows = [
        *table_rows("attn-binding", "FuseMax", fusemax),
        *table_rows("attn-arch", "FuseMax without interleaving", fusemax_stalled),
        *table_rows("attn-cascade", "one-pass cascade on FLAT's array", cascade),
        *table_rows("end2end-proposal", "linear layers", linear),
    ]
    rows += [
        CardRow(
            f"FuseMax as events: latency, s [{p.model.name} {p.length_name}]",
            fusemax_event_latency(p.model, p.length),
            p.latency,
            EVENTS,
        )
        for p in published("attn-binding")
    ]
    rows += [
        CardRow("attention, mean speed over FLAT", speedup(flat, end_to_end=False), 6.7, MEANS),
        CardRow("attention, mean speed over unfused", speedup(unfused, end_to_end=False), 10.0, MEANS),
        CardRow("end to end, mean speed over FLAT", speedup(flat, end_to_end=True), 5.3, MEANS),
        CardRow("end to end, mean speed over unfused", speedup(unfused, end_to_end=True), 7.6, MEANS),
        CardRow("attention, mean energy of FLAT's", None, 0.79, MEANS, NOT_ENERGY),
        CardRow("attention, mean energy of unfused", None, 0.77, MEANS, NOT_ENERGY),
    ]
    return Card(
        "fusemax",
        "FuseMax: attention on 256 x 256 elements and 256 lanes, BERT, Transformer-XL, T5 and XLM, 1K to 1M tokens",
        "Nayak et al., FuseMax: Leveraging Extended Einsums to Optimize Attention Accelerator Design, MICRO 2024",
        tuple(rows),
    )

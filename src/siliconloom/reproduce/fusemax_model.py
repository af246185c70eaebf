"""Attention on a 2D and a 1D array, in closed form: FuseMax, its ablations, FLAT, and three separate kernels.

Nayak et al., "FuseMax: Leveraging Extended Einsums to Optimize Attention Accelerator Design", MICRO 2024; Kao et al.,
"FLAT: An Optimized Dataflow for Mitigating Attention Bottlenecks", ASPLOS 2023.

The machine has 256 x 256 elements (2D) and 256 lanes (1D) at 940 MHz, 16-bit values, memory of 400 GiB/s. Times are in
units of one cycle per 256 x 256 tile of scores; a layer has ``batch x heads x M x P / 65536`` tiles. Per tile the 2D
array takes E cycles for QK and F for the product with V, one per score for each further operation on FuseMax's elements
(maximum 1, exponential 6 multiply-adds and an addition, sum 1). The 1D array takes 256 cycles to touch every score, and
one per operation on values that exist once per tile and query.

Which operation runs where, what is added and what overlaps was learnt from the papers and from the artifact's source
(MIT licence), which gets its counts from Timeloop; the formulas and the counting here are ours. The cascade on FLAT's
array has FuseMax's buffer, as it has there.
"""

from __future__ import annotations

from msgspec import Struct

from siliconloom.reproduce.fusemax_tables import BATCH, FlatMapping, Model, flat_mapping

SIDE = 256
CLOCK = 940_000_000
BANDWIDTH = 400 * 2**30
VALUE_BYTES = 2
FUSEMAX_BUFFER, FLAT_BUFFER = 16 * 2**20, 32 * 2**20

MAX, EXP, SUM = 1, 7, 1
"""Cycles of a FuseMax element per score: local maximum; exponential by a polynomial; local sum."""
RUNNING_MAX, CORRECTION, SCALE, DENOMINATOR, DIVIDE = 1, EXP, 1, 1, 1
"""Cycles of the 1D array per tile and query: new running maximum; factor exp(old - new); scaled denominator; its sum;
division of a result."""


class FusemaxOutcome(Struct, frozen=True):
    """Seconds, bytes from and to memory, and the shares of the time that the 2D and the 1D array work."""

    latency: float
    traffic: float
    util_2d: float
    util_1d: float


def tiles(model: Model, length: int) -> float:
    """Tiles of scores of a layer; times the cycles per tile they are the layer's."""
    return BATCH * model.heads * length * length / SIDE**2


def _outcome(
    model: Model, length: int, cycles: float, traffic: float, work_2d: float, work_1d: float
) -> FusemaxOutcome:
    """Finish an outcome from cycles per tile; memory can be slower than both arrays."""
    compute = cycles * tiles(model, length) / CLOCK
    latency = max(compute, traffic / BANDWIDTH)
    scale = tiles(model, length) / CLOCK / latency
    return FusemaxOutcome(latency, traffic, work_2d * scale, work_1d * scale)


def _operand_bytes(model: Model, length: int) -> int:
    """Bytes of one of Q, K, V or the result, all heads and sequences."""
    return BATCH * model.heads * length * model.head_dim * VALUE_BYTES


def block_rows(model: Model, length: int, buffer: int, extra: int) -> int:
    """Queries that stay on chip while all keys pass by.

    Each holds its query, its result, its running maximum and denominator, and ``extra`` further values; a tile of keys
    and one of values lie beside them. The number of 256-row tiles divides that of the sequence.
    """
    per_row = (2 * model.head_dim + 2 + extra) * VALUE_BYTES
    free = buffer - 2 * SIDE * model.head_dim * VALUE_BYTES
    most, whole = free // (per_row * SIDE), length // SIDE
    return max(n for n in range(1, min(most, whole) + 1) if whole % n == 0) * SIDE


def cascade_traffic(model: Model, length: int, rows: int) -> float:
    """Bytes of the one-pass cascade: queries and results once, keys and values once per block of ``rows`` queries."""
    return _operand_bytes(model, length) * (2 + 2 * (length // rows))


def _work_1d(model: Model, length: int) -> float:
    """1D cycles per tile of FuseMax: running values, the correction of the result so far, the division at the end."""
    running = RUNNING_MAX + CORRECTION + SCALE + DENOMINATOR
    return running + 2 * model.head_dim + SIDE * model.head_dim * DIVIDE / length


def fusemax(model: Model, length: int) -> FusemaxOutcome:
    """FuseMax as published: stages of different tiles interleaved, so that both arrays work at once.

    Per tile: QK and local maximum beside the running denominator, result and division; the running maximum alone;
    exponentials and sums beside the correction factor; the product with V beside the scaling of the result.
    """
    e = model.head_dim
    first = max(e + MAX, DENOMINATOR + e + SIDE * e * DIVIDE / length)
    cycles = first + RUNNING_MAX + max(EXP + SUM, CORRECTION + SCALE) + max(e, e)
    work = e + MAX + EXP + SUM + e
    rows = block_rows(model, length, FUSEMAX_BUFFER, 0)
    return _outcome(model, length, cycles, cascade_traffic(model, length, rows), work, _work_1d(model, length))


def fusemax_stalled(model: Model, length: int) -> FusemaxOutcome:
    """FuseMax's elements without interleaving: the stages of a tile follow one another, the array is filled in between.

    QK and maximum; 256 cycles until the last row's maximum has left the array; running maximum; exponentials and sums;
    the product with V; the result's update.
    """
    e = model.head_dim
    cycles = e + MAX + SIDE + RUNNING_MAX + EXP + SUM + 2 * e
    work = e + MAX + EXP + SUM + e
    rows = block_rows(model, length, FUSEMAX_BUFFER, 0)
    return _outcome(model, length, cycles, cascade_traffic(model, length, rows), work, _work_1d(model, length))


def cascade(model: Model, length: int) -> FusemaxOutcome:
    """The one-pass cascade on FLAT's elements: maximum, exponential (difference and table) and sum on the 1D array."""
    e = model.head_dim
    touched = 4 * SIDE  # maximum, difference, exponential, sum of every score
    correction = 2  # difference and exponential of one value a query
    per_tile = RUNNING_MAX + correction + SCALE + DENOMINATOR + 2 * e + SIDE * e * DIVIDE / length
    rows = block_rows(model, length, FUSEMAX_BUFFER, 2 * SIDE)  # a tile's row of scores and one of exponentials
    traffic = cascade_traffic(model, length, rows)
    return _outcome(model, length, max(2 * e, touched + per_tile), traffic, 2 * e, touched + per_tile)


SOFTMAX = 4 * SIDE
"""1D cycles per tile of a softmax: maximum, exponential of the difference, sum, division, each over all scores."""


def flat(model: Model, length: int) -> FusemaxOutcome:
    """FLAT: the three steps share the time of the slower array; scores stay on chip where they fit.

    The 2D array computes 256 x 256 tiles without keeping operands: a tensor that is not on chip comes again for every
    row or column of tiles. A share of the scores that does not fit the buffer goes to memory at each of its seven
    uses (QK out; read for maximum and difference; exponentials out and in; probabilities out and in).
    """
    mapping = flat_mapping(model.head_dim, length)
    scores = BATCH * model.heads * length * length * VALUE_BYTES
    operand = _operand_bytes(model, length)
    passes = length // SIDE
    if mapping.scores:
        again = [1 if mapping.q else passes, 1 if mapping.k else passes, 1 if mapping.v else passes, 1]
        traffic = operand * sum(again) + 7 * spilled(model, length, mapping) * scores
    else:
        blocks = length // mapping.rows  # queries and results stay, keys and values pass by
        traffic = operand * (2 + 2 * blocks) + 4 * scores
    return _outcome(model, length, max(2 * model.head_dim, SOFTMAX), traffic, 2 * model.head_dim, SOFTMAX)


def spilled(model: Model, length: int, mapping: FlatMapping) -> float:
    """Share of the scores that finds no room.

    Beside them lie two tiles of what passes by; blocks of queries and results that stay, twice, since the next is
    fetched meanwhile; keys and values that stay, and a tile of the next head's.
    """
    row = model.head_dim * VALUE_BYTES
    held = mapping.rows * length * VALUE_BYTES
    for stays in (mapping.q, mapping.out):
        held += 2 * row * (mapping.rows if stays else SIDE)
    for stays in (mapping.k, mapping.v):
        held += row * (length + SIDE if stays else 2 * SIDE)
    return max(0.0, 1 - FLAT_BUFFER / held)


def unfused(model: Model, length: int) -> FusemaxOutcome:
    """Three kernels one after the other, each as slow as its array or its traffic; scores go through memory."""
    e = model.head_dim
    scores = BATCH * model.heads * length * length * VALUE_BYTES
    operand = _operand_bytes(model, length)
    rows = length
    while (rows + 2 * SIDE) * e * VALUE_BYTES > FLAT_BUFFER:
        rows //= 2
    product = operand * (1 + length // rows) + scores  # one operand stays in blocks, the other passes by
    unit = tiles(model, length) / CLOCK
    steps = [
        max(e * unit, product / BANDWIDTH),
        max(SOFTMAX * unit, 2 * scores / BANDWIDTH),
        max(e * unit, product / BANDWIDTH),
    ]
    latency = sum(steps)
    return FusemaxOutcome(latency, 2 * product + 2 * scores, 2 * e * unit / latency, SOFTMAX * unit / latency)


def linear(model: Model, length: int) -> FusemaxOutcome:
    """The linear layers of a block (Q, K, V, output, two of the feed-forward), each as slow as array or memory."""
    rows, inner = BATCH * length, model.head_dim * model.heads
    latency = traffic = work = 0.0
    for k, n, times in (
        (model.width, inner, 3),
        (inner, model.width, 1),
        (model.width, model.hidden, 1),
        (model.hidden, model.width, 1),
    ):
        moved = (rows * k + k * n + rows * n) * VALUE_BYTES
        compute = rows * k * n / SIDE**2 / CLOCK
        latency += times * max(compute, moved / BANDWIDTH)
        traffic += times * moved
        work += times * compute
    return FusemaxOutcome(latency, traffic, work / latency, 0.0)

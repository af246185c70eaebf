"""Attention on a 2D and a 1D array, in closed form: FuseMax, its ablations, FLAT, and three separate kernels.

Nayak et al., "FuseMax: Leveraging Extended Einsums to Optimize Attention Accelerator Design", MICRO 2024; Kao et al.,
"FLAT: An Optimized Dataflow for Mitigating Attention Bottlenecks", ASPLOS 2023.

The machine has 256 x 256 elements (2D) and 256 lanes (1D) at 940 MHz, 16-bit values, memory of 400 GiB/s. Times are in
units of one cycle per 256 x 256 tile of scores; a layer has ``batch x heads x M x P / 65536`` tiles. Per tile the 2D
array takes E cycles for QK and F for the product with V, one per score for each further operation on FuseMax's elements
(maximum 1, exponential 6 multiply-adds and an addition, sum 1). The 1D array takes 256 cycles to touch every score, and
one per operation on values that exist once per tile and query.

Operations, passes, what lies in the buffer and what goes through memory are derived from the cascades of
`siliconloom.workloads.cascades` (``loom cascade fusemax``, ``loom cascade attention-3-pass``); stated here is what the
papers and the artifact's source (MIT licence) say of the machine: which Einsum runs on which array, what a function
costs there, which Einsums are one kernel, what overlaps. The artifact gets its counts from Timeloop; the counting here
is ours. The cascade on FLAT's array has FuseMax's buffer, as it has there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from msgspec import Struct

from siliconloom.reproduce.fusemax_tables import BATCH, FlatMapping, Model, flat_mapping
from siliconloom.workloads.cascades.described import load_cascade
from siliconloom.workloads.cascades.einsum import Cascade
from siliconloom.workloads.cascades.passes import plan_passes
from siliconloom.workloads.cascades.tiles import PRODUCT, TiledTraffic, least_tiled
from siliconloom.workloads.cascades.traffic import footprint, fused_traffic, group_traffic

SIDE = 256
CLOCK = 940_000_000
BANDWIDTH = 400 * 2**30
VALUE_BYTES = 2
FUSEMAX_BUFFER, FLAT_BUFFER = 16 * 2**20, 32 * 2**20

GRID, LANES = SIDE * SIDE, SIDE
"""Elements of the 2D array, lanes of the 1D array: points that are computed at once."""
POLYNOMIAL, TABLE = {"exp": 6}, {"exp": 1}
"""Cycles of a function that takes more than one, or of one that a table answers: FuseMax's elements compute an
exponential by a polynomial of six multiply-adds, FLAT's lanes look it up."""
KERNELS = (("QK",), ("GM",), ("SN", "SD"), ("A",), ("AV",))
"""Einsums of FLAT's softmax that hand scores on through the buffer: the sum alone is taken as exponentials are made."""
UNFUSED = (("QK",), ("GM", "SN", "SD", "A"), ("AV",))
"""Three kernels that hand scores on through memory."""


@cache
def attention(name: str, head_dim: int, heads: int, length: int) -> Cascade:
    """A cascade of the library for one layer's attention in this machine's tiles."""
    sizes = {"B": BATCH, "H": heads, "E": head_dim, "F": head_dim, "M": length, "P": length, "P0": SIDE}
    return load_cascade(name, [(rank, str(size)) for rank, size in sizes.items()])


def einsum_cycles(cascade: Cascade, einsum: str, lanes: int, costs: Mapping[str, int] | None) -> float:
    """Cycles of an Einsum per 256 x 256 tile of scores on so many lanes.

    Without ``costs`` a point takes one cycle whatever is computed there (the lanes are pipelined); otherwise every
    function of the Einsum takes its cost, one unless stated.
    """
    tile = cascade.extents["M"] * cascade.extents["P"] / SIDE**2
    made = cascade.einsum(einsum)
    each = 1 if costs is None else sum(costs.get(f, 1) * n for f, n in made.operations().items())
    return cascade.points(made) * each / lanes / tile


def on_arrays(cascade: Cascade, grid: Sequence[str], costs: Mapping[str, int] | None) -> dict[str, float]:
    """Cycles per tile of every Einsum: of those named on the 2D array, of the others on the 1D array."""
    names = dict.fromkeys(e.name for e in cascade.einsums)
    return {name: einsum_cycles(cascade, name, GRID if name in grid else LANES, costs) for name in names}


@cache
def stage_cycles(head_dim: int, length: int) -> dict[str, float]:
    """Cycles per tile of FuseMax's Einsums on its own elements, which also take maxima, exponentials and sums."""
    on_grid = ("QK", "LM", "SLN", "SLD", "SLNV")
    return on_arrays(attention("fusemax", head_dim, 1, length), on_grid, POLYNOMIAL)


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


def cascade_traffic(model: Model, length: int, staged: Sequence[str] = ()) -> float:
    """Bytes of the one-pass cascade: queries and results once, keys and values once per block of queries.

    ``staged`` tensors lie in the buffer for all queries of a block, because another array makes them.
    """
    found = fused_traffic(
        attention("fusemax", model.head_dim, model.heads, length),
        FUSEMAX_BUFFER,
        element_bytes=VALUE_BYTES,
        staged=staged,
    )
    return found.total


def _fusemax_work(cycles: Mapping[str, float]) -> tuple[float, float]:
    """Cycles per tile that FuseMax's 2D and 1D arrays work."""
    grid = sum(cycles[name] for name in ("QK", "LM", "SLN", "SLD", "SLNV"))
    return grid, sum(cycles.values()) - grid


def fusemax(model: Model, length: int) -> FusemaxOutcome:
    """FuseMax as published: stages of different tiles interleaved, so that both arrays work at once.

    Per tile: QK and local maximum beside the running denominator, result and division; the running maximum alone;
    exponentials and sums beside the correction factor; the product with V beside the scaling of the result.
    """
    of = stage_cycles(model.head_dim, length)
    first = max(of["QK"] + of["LM"], of["RD"] + of["RNV"] + of["AV"])
    second = max(of["SLN"] + of["SLD"], of["PRM"] + of["SPD"])
    cycles = first + of["RM"] + second + max(of["SLNV"], of["SPNV"])
    return _outcome(model, length, cycles, cascade_traffic(model, length), *_fusemax_work(of))


def fusemax_stalled(model: Model, length: int) -> FusemaxOutcome:
    """FuseMax's elements without interleaving: the stages of a tile follow one another, the array is filled in between.

    QK and maximum; 256 cycles until the last row's maximum has left the array; running maximum; exponentials and sums;
    the product with V; the result's update.
    """
    of = stage_cycles(model.head_dim, length)
    cycles = of["QK"] + of["LM"] + SIDE + of["RM"] + of["SLN"] + of["SLD"] + of["SLNV"] + of["RNV"]
    return _outcome(model, length, cycles, cascade_traffic(model, length), *_fusemax_work(of))


def cascade(model: Model, length: int) -> FusemaxOutcome:
    """The one-pass cascade on FLAT's elements: maximum, exponential (difference and table) and sum on the 1D array.

    A tile's row of scores and one of exponentials are handed from array to array through the buffer.
    """
    grid = ("QK", "SLNV")
    of = on_arrays(attention("fusemax", model.head_dim, model.heads, length), grid, TABLE)
    products = sum(of[name] for name in grid)
    lanes = sum(of.values()) - products
    traffic = cascade_traffic(model, length, ("QK", "SLN"))
    return _outcome(model, length, max(products, lanes), traffic, products, lanes)


def softmax_cycles(model: Model, length: int) -> tuple[float, float]:
    """Cycles per tile of both products on the 2D array and of a softmax on the 1D array, which passes every score by.

    Maximum, exponential of the difference, sum and division take one cycle each of the pipelined lanes.
    """
    of = on_arrays(attention("attention-3-pass", model.head_dim, model.heads, length), ("QK", "AV"), None)
    return of["QK"] + of["AV"], of["GM"] + of["SN"] + of["SD"] + of["A"]


def score_moves(groups: Sequence[Sequence[str]]) -> int:
    """Times that a matrix of scores, exponentials or probabilities goes from or to memory between kernels."""
    made = attention("attention-3-pass", SIDE, 1, SIDE)
    times = group_traffic(made, groups)
    return sum(n for tensor, n in times.items() if set(made.ranks_of(tensor)) == {"M", "P"})


def flat(model: Model, length: int) -> FusemaxOutcome:
    """FLAT: the three steps share the time of the slower array; scores stay on chip where they fit.

    The 2D array computes 256 x 256 tiles without keeping operands: a tensor that is not on chip comes again for every
    row or column of tiles. Where not all finds room, a share of what lies on chip goes to memory instead: of scores
    at each of their uses, of operands that stay at each but the first.
    """
    mapping = flat_mapping(model.head_dim, length)
    scores = BATCH * model.heads * length * length * VALUE_BYTES
    operand = _operand_bytes(model, length)
    passes = length // SIDE
    share = spilled(model, length, mapping)
    if mapping.scores:
        again = [1 + share * (passes - 1) if stays else passes for stays in (mapping.q, mapping.k, mapping.v)]
        traffic = operand * (sum(again) + 1) + score_moves(KERNELS) * share * scores
    else:
        blocks = length // mapping.rows  # queries and results stay, keys and values pass by
        traffic = operand * (2 + 2 * blocks) + score_moves(UNFUSED) * scores
    products, softmax = softmax_cycles(model, length)
    return _outcome(model, length, max(products, softmax), traffic, products, softmax)


def spilled(model: Model, length: int, mapping: FlatMapping) -> float:
    """Share of what lies on chip that finds no room, if scores lie there.

    Scores that are alive between two passes of the cascade; beside them two tiles of what passes by; blocks of
    queries and results that stay, twice, since the next is fetched meanwhile; keys and values that stay, and a tile
    of the next head's. FLAT's accounting has room for both where values stay, also if the mapping lets keys pass by.
    """
    if not mapping.scores:
        return 0.0
    made = attention("attention-3-pass", model.head_dim, model.heads, length)
    row = model.head_dim * VALUE_BYTES
    held = footprint(made, plan_passes(made, "M"), {"p": mapping.rows}).between * VALUE_BYTES
    for stays in (mapping.q, mapping.out):
        held += 2 * row * (mapping.rows if stays else SIDE)
    for stays in (mapping.k or mapping.v, mapping.v):
        held += row * (length + SIDE if stays else 2 * SIDE)
    return max(0.0, 1 - FLAT_BUFFER / held)


def unfused(model: Model, length: int) -> FusemaxOutcome:
    """Three kernels one after the other, each as slow as its array or its traffic; scores go through memory."""
    e = model.head_dim
    scores = BATCH * model.heads * length * length * VALUE_BYTES
    operand = _operand_bytes(model, length)
    products, softmax = softmax_cycles(model, length)
    rows = length
    while (rows + 2 * SIDE) * e * VALUE_BYTES > FLAT_BUFFER:
        rows //= 2
    product = operand * (1 + length // rows) + scores  # one operand stays in blocks, the other passes by
    unit = tiles(model, length) / CLOCK
    between = score_moves(UNFUSED) * scores - 2 * scores  # what the softmax reads and writes
    steps = [
        max(products / 2 * unit, product / BANDWIDTH),
        max(softmax * unit, between / BANDWIDTH),
        max(products / 2 * unit, product / BANDWIDTH),
    ]
    latency = sum(steps)
    return FusemaxOutcome(latency, 2 * product + between, products * unit / latency, softmax * unit / latency)


@cache
def product_tiles(rows: int, inner: int, columns: int, buffer: int) -> TiledTraffic:
    """Tiles of a product under a buffer of so many bytes, and what it moves.

    The array takes 256 x 256 results at a time, which go straight to memory. All inner elements of a tile lie on
    chip, so that no partial sum leaves; columns go round inside rows, so weights that do not fit come again for every
    tile of rows. Both are constraints that the artifact states to Timeloop; its mapper's tiles are the best ones.
    """
    return least_tiled(
        PRODUCT,
        "Z",
        {"M": rows, "N": columns, "K": inner},
        buffer // VALUE_BYTES,
        order=("M", "N", "K"),
        whole=("K",),
        multiple={"M": SIDE, "N": SIDE},
        bypass=("Z",),
    )


def linear(model: Model, length: int, buffer: int = FUSEMAX_BUFFER) -> FusemaxOutcome:
    """The linear layers of a block (Q, K, V, output, two of the feed-forward), each as slow as array or memory."""
    rows, inner = BATCH * length, model.head_dim * model.heads
    latency = traffic = work = 0.0
    for k, n, times in (
        (model.width, inner, 3),
        (inner, model.width, 1),
        (model.width, model.hidden, 1),
        (model.hidden, model.width, 1),
    ):
        moved = product_tiles(rows, k, n, buffer).total * VALUE_BYTES
        compute = rows * k * n / SIDE**2 / CLOCK
        latency += times * max(compute, moved / BANDWIDTH)
        traffic += times * moved
        work += times * compute
    return FusemaxOutcome(latency, traffic, work / latency, 0.0)


def flat_linear(model: Model, length: int) -> FusemaxOutcome:
    """The linear layers on the machine of FLAT and of separate kernels, whose buffer is twice as large."""
    return linear(model, length, FLAT_BUFFER)

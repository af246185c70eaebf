"""Predicted time and energy of operations on a GPU, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.baselines import attention, collective, gemm
from siliconloom.baselines.dequantization import expansion_cycles, unpacking_cycles
from siliconloom.baselines.efficiency import Efficiency, load_efficiency
from siliconloom.baselines.elementwise import elementwise_times
from siliconloom.baselines.operations import (
    CACHES,
    COLLECTIVES,
    ELEMENTWISE,
    KEPT,
    KERNELS,
    OPS,
    PRECISIONS,
    CacheStored,
    Op,
    Operations,
    Precision,
)
from siliconloom.baselines.roofline import compulsory_bytes, flops, least_seconds

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

BLOCKS = {
    "flash-attention-2": (((64, 128, 128), (128, 128, 64), (256, 64, 64)), (64.0, 128.0, 2.0, 0.0), False),
    "flash-attention-3": (((96, 192, 128), (128, 128, 128), (256, 128, 80)), (64.0, 128.0, 1.0, 1.0), True),
}
"""Of each kernel library: queries and keys of a block by head size at most (head, rows, columns); in decode rows and
keys of a block, blocks resident on a multiprocessor, whether ungrouped heads are split; whether heads are packed."""
IN_FP8 = ("flash-attention-3",)
"""Kernel libraries that multiply keys and values of eight bits as they are, with queries rounded to as many (Shah et
al., 2024, section 3.3)."""
MOST_HEAD = 256
WRITERS = 512.0
"""Threads of a block that writes a token's keys and values."""
PACKED_ERROR = {"mma": 0.2, "wgmma": 0.6}
"""Of products with packed or sparse weights, and of decode with a cache in fewer bits, by kernel library; no such
kernel is among the measured tables. On Hopper the largest that the card ``marlin`` has: ours are 27 to 59 % above the
speedups of six rows of one machine. On others a guess, three times the error of dense products; the two rows of the
card are within 2 %."""
RESULT_BYTES = 2.0
"""Results of 8-bit and 4-bit products are 16-bit."""


class Prediction(Struct, frozen=True):
    """Columns as long as the operations.

    Parameters
    ----------
    seconds, roofline
        Predicted time, and the time below which the machine cannot be.
    joules
        Of one GPU, its idle power included.
    bound
        What limits each row: compute, l2, memory, exponentials, launch, latency, link, network.
    error
        Median relative error of such predictions on shapes that the fit never saw.
    """

    seconds: Float
    roofline: Float
    joules: Float
    bound: list[str]
    error: Float


def predict(
    gpu: Gpu,
    operations: Operations,
    *,
    sustained: bool = False,
    cache_write: bool = True,
    graph: bool = True,
    quantized: bool = False,
) -> Prediction:
    """Predict every row.

    Parameters
    ----------
    sustained
        As in a run of seconds, where the board's power limit holds the clock down; otherwise as in a burst of
        milliseconds, as micro-benchmarks measure.
    cache_write
        Prefill's attention writes its keys and values to the cache, as in serving.
    graph
        Kernels are launched from a captured graph; otherwise each is launched by itself.
    quantized
        Activations of 8-bit products come scaled and rounded from the kernel before, as in serving; otherwise the
        product's time has that in it, as micro-benchmarks measure.

    Raises
    ------
    LoomError
        For a precision that the GPU has no units for, or heads larger than the kernels'.
    """
    for code in np.unique(operations.dtype[~operations.among(*COLLECTIVES, *ELEMENTWISE)]).tolist():
        gpu.rate(str(PRECISIONS[code]))
    if not operations.among(*KERNELS).all():
        row = int(np.argmin(operations.among(*KERNELS)))
        raise NotSupported(f"{OPS[operations.op[row]]} is no kernel; see `loom compare` for whole models")
    efficiency = load_efficiency(gpu.architecture)
    seconds, bound = np.zeros(len(operations)), np.full(len(operations), "", dtype=object)
    error = np.zeros(len(operations))
    parts: tuple[tuple[Bool, Any, bool, float], ...] = (
        (operations.among(Op.GEMM), _gemm, not quantized, efficiency.error.gemm),
        (operations.among(Op.ATTENTION_PREFILL), _prefill, cache_write, efficiency.error.attention_prefill),
        (operations.among(Op.ATTENTION_DECODE), _decode, False, efficiency.error.attention_decode),
        (operations.among(*COLLECTIVES), _collective, False, efficiency.error.collective),
        (operations.among(*ELEMENTWISE), _elementwise, False, efficiency.error.elementwise),
    )
    for mask, model, more, typical in parts:
        if mask.any():
            chosen = operations.select(mask)
            seconds[mask], bound[mask] = model(gpu, efficiency, chosen, more)
            error[mask] = typical
    read = operations.cached() & operations.among(Op.ATTENTION_DECODE)  # a prompt's are only written otherwise
    stored = operations.packed() | operations.sparse() | read
    error[stored] = np.maximum(error[stored], PACKED_ERROR[efficiency.kernels])
    floor = least_seconds(operations, gpu)
    seconds, joules = _limited(gpu, efficiency, operations, np.maximum(seconds, floor), sustained)
    if not graph:
        seconds = seconds + LAUNCH_ALONE
    return Prediction(seconds, floor, joules, bound.tolist(), error)


def predict_with(
    gpu: Gpu, efficiency: Efficiency, products: Operations, *, sustained: bool = False
) -> tuple[Float, Float]:
    """Seconds and joules of matrix products with constants of one's own, for fitting them."""
    return _limited(gpu, efficiency, products, _gemm(gpu, efficiency, products, True)[0], sustained)


LAUNCH_ALONE = 3e-6
"""Seconds between kernels that the host launches one by one and keeps ahead of (CUDA driver, stream order)."""


def _machine(gpu: Gpu) -> Float:
    return np.array([gpu.multiprocessors, gpu.clock, gpu.memory_bandwidth, gpu.l2_bytes])


def _rates(gpu: Gpu, operations: Operations) -> Float:
    found: Float = np.array([float(gpu.rates.get(str(p), 0)) for p in PRECISIONS])[operations.dtype]
    return found


def _sparse_rates(gpu: Gpu, products: Operations) -> Float:
    """How many times the dense rate sparse weights have, by the datasheet; one of dense ones."""
    sparse = products.sparse()
    if sparse.any() and gpu.sparse is None:
        raise NotSupported(f"sparse weights on {gpu.name}, whose description has no rate of them (sparse)")
    return np.where(sparse, float(gpu.sparse or 1), 1.0)


def _columns(operations: Operations, *names: str) -> tuple[Float, ...]:
    return tuple(getattr(operations, name).astype(np.float64) for name in names)


def _gemm(gpu: Gpu, efficiency: Efficiency, o: Operations, rounds: bool) -> tuple[Float, list[str]]:
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    element = o.element_bytes()
    fitted = efficiency.gemm
    m, n, k, batch = _columns(o, "m", "n", "k", "batch")
    narrow = element < RESULT_BYTES  # activations come in 16 bits and are scaled and rounded first
    gemm.gemm_times(
        m,
        n,
        k,
        batch,
        element,
        o.weight_bytes() / (batch * n * k),
        unpacking_cycles(gpu, o) * np.where(o.sparse(), KEPT, 1.0),
        _rates(gpu, o) * np.where(narrow, fitted.narrow, 1.0) * _sparse_rates(gpu, o),
        np.maximum(element, RESULT_BYTES),
        gemm.TILES[efficiency.kernels],
        gemm.SPLITS,
        _machine(gpu),
        fitted.vector(),
        time,
        bound,
    )
    time *= 1.0 + fitted.slow * time / (time + fitted.tau)
    scaling = fitted.quantize + batch * m * k * (RESULT_BYTES + element) / (gpu.memory_bandwidth * fitted.stream)
    return time + np.where(narrow & rounds, scaling, 0.0), [gemm.BOUNDS[b] for b in bound.tolist()]


def _block_sizes(efficiency: Efficiency, head: Float) -> tuple[Float, Float]:
    sizes = np.array(BLOCKS[efficiency.attention][0], np.float64)
    at = np.searchsorted(sizes[:, 0], head)
    if (at == len(sizes)).any():
        raise NotSupported(f"attention with heads of {int(head.max())}; kernels go to {MOST_HEAD}")
    return sizes[at, 1], sizes[at, 2]


def _attention_machine(gpu: Gpu) -> Float:
    return np.array([gpu.multiprocessors, gpu.clock, gpu.memory_bandwidth, gpu.exponentials], np.float64)


def _prefill(gpu: Gpu, efficiency: Efficiency, o: Operations, cache_write: bool) -> tuple[Float, list[str]]:
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    batch, queries, keys, heads, kv_heads, head = _columns(
        o, "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"
    )
    rows, columns = _block_sizes(efficiency, head)
    packs = np.full(len(o), 1.0 if BLOCKS[efficiency.attention][2] else 0.0)
    asked = attention.Prefills(
        batch,
        queries,
        keys,
        heads,
        kv_heads,
        head,
        o.causal,
        o.element_bytes(),
        _rates(gpu, o),
        rows,
        columns,
        packs,
        o.kept_bytes(),
        np.full(len(o), WRITERS if cache_write else 0.0),
    )
    attention.prefill_times(asked, _attention_machine(gpu), efficiency.prefill.vector(), time, bound)
    time *= 1.0 + efficiency.gemm.slow * time / (time + efficiency.gemm.tau)
    return time, [attention.BOUNDS[b] for b in bound.tolist()]


def _decode(gpu: Gpu, efficiency: Efficiency, o: Operations, _: bool) -> tuple[Float, list[str]]:
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    batch, queries, keys, heads, kv_heads, head = _columns(
        o, "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"
    )
    _block_sizes(efficiency, head)
    as_kept = (o.cache == CACHES.index(CacheStored.FP8)) & (efficiency.attention in IN_FP8)
    expand, rates = expansion_cycles(gpu, o, as_kept), _rates(gpu, o)
    if as_kept.any():
        rates = np.where(as_kept, float(gpu.rates[Precision.FP8]), rates)
    attention.decode_times(
        batch,
        queries,
        keys,
        heads,
        kv_heads,
        head,
        o.kept_bytes(),
        expand,
        rates,
        _attention_machine(gpu),
        np.array(BLOCKS[efficiency.attention][1]),
        efficiency.decode.vector(),
        time,
        bound,
    )
    return time, [attention.BOUNDS[b] for b in bound.tolist()]


def _collective(gpu: Gpu, efficiency: Efficiency, o: Operations, _: bool) -> tuple[Float, list[str]]:
    time, bound = np.empty(len(o)), np.empty(len(o), np.int64)
    code = np.zeros(len(OPS), np.int64)
    for position, op in enumerate(COLLECTIVES):
        code[OPS.index(op)] = position
    link = gpu.link
    machine = np.array(
        [
            link.bandwidth,
            link.network,
            link.network_latency * 1e-12,
            link.per_node,
            link.in_switch,
            gpu.memory_bandwidth,
            collective.LL_MOST.get(gpu.architecture, collective.LL_MOST_ELSE),
            *collective.LL_MOST_NODES,
        ],
        np.float64,
    )
    gpus, size = _columns(o, "gpus", "bytes")
    collective.collective_times(
        code[o.op], gpus, size, machine, collective.TUNER, efficiency.collective.vector(), time, bound
    )
    return time, [collective.BOUNDS[b] for b in bound.tolist()]


def _elementwise(gpu: Gpu, efficiency: Efficiency, o: Operations, _: bool) -> tuple[Float, list[str]]:
    fitted = efficiency.elementwise
    shares = np.array([getattr(fitted, str(op), 1.0) for op in OPS])[o.op]
    time, memory = elementwise_times(compulsory_bytes(o), shares, gpu.memory_bandwidth, fitted.launch)
    return time, ["memory" if m else "launch" for m in memory.tolist()]


def _limited(gpu: Gpu, efficiency: Efficiency, o: Operations, seconds: Float, sustained: bool) -> tuple[Float, Float]:
    """Seconds and joules under the board's power limit: idle power, matrix work by width, DRAM traffic.

    Dynamic energy goes with the square of the voltage, which falls about as the clock does: at a share f of the clock
    the dynamic power is f^3 of what it was, and the time 1/f where the clock is what limits the work. A burst is over
    before the limit acts.
    """
    widths = o.element_bytes() / RESULT_BYTES
    dynamic = flops(o) * efficiency.power.flop * widths + compulsory_bytes(o) * efficiency.power.byte
    room = gpu.power - gpu.idle_power
    if sustained or efficiency.limited:
        seconds = seconds / np.minimum(1.0, np.cbrt(room * seconds / np.maximum(dynamic, 1e-30)))
    return seconds, gpu.idle_power * seconds + np.minimum(dynamic, room * seconds)

"""A workload's operators as the kernels that a serving stack launches for them on a GPU, and their times.

Norms take the residual sum before them along, activations are fused with their gate, keys and values are written to
the cache by attention's call, 8-bit activations leave the kernel that makes them scaled and rounded: the kernels of
vLLM and TensorRT-LLM. Sums over tensor-parallel GPUs are all-reduces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType, Sparsity
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.arch.vector import VectorFunction
from siliconloom.baselines.attention_backward import MOST_HEAD, PRODUCTS, has_backward
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.held import library_gpu
from siliconloom.baselines.operation_rows import make_operations, one_of
from siliconloom.baselines.operations import PACKED_BESIDE, Dealt, Op, Operations, WeightFormat
from siliconloom.baselines.predict import is_changed, predict, predict_times
from siliconloom.baselines.roofline import compulsory_bytes, flops, link_bytes, peak_rates
from siliconloom.workloads import Attention, Collective, Gemm, Graph, Operator, SharedAttention, Vector
from siliconloom.workloads.graph import Phase, is_optimizer
from siliconloom.workloads.roles import Pass, Role

Float = NDArray[np.float64]

KERNEL_OF: dict[VectorFunction, Op] = {
    VectorFunction.RMS_NORM: Op.RMSNORM,
    VectorFunction.LAYER_NORM: Op.LAYERNORM,
    VectorFunction.SOFTMAX: Op.SOFTMAX,
    VectorFunction.GATED_SILU: Op.SILU_MUL,
    VectorFunction.GATED_GELU: Op.SILU_MUL,
    VectorFunction.CLAMPED_SWIGLU: Op.SILU_MUL,
    VectorFunction.GATED_SIGMOID: Op.SILU_MUL,
    VectorFunction.SIGMOID: Op.GELU,
    VectorFunction.GELU: Op.GELU,
    VectorFunction.SILU: Op.GELU,
    VectorFunction.TANH: Op.GELU,
    VectorFunction.RELU: Op.GELU,
    VectorFunction.ADD: Op.ADD,
    VectorFunction.COMBINE: Op.ADD,
    VectorFunction.MULTIPLY: Op.ADD,
    VectorFunction.ROPE: Op.ROPE,
    VectorFunction.GATHER: Op.EMBEDDING,
    VectorFunction.COPY: Op.GELU,
    VectorFunction.TRANSPOSE: Op.GELU,
    VectorFunction.TOP_K: Op.SOFTMAX,
    VectorFunction.ARGMAX: Op.SOFTMAX,
    VectorFunction.REQUANTIZE: Op.GELU,
}
"""Element-wise kernel with the same passes over memory."""
ADD_PASSES = 3
"""Operands and results of a sum."""
NORMS = (VectorFunction.RMS_NORM, VectorFunction.LAYER_NORM)
EXPERT_PRODUCTS = (Role.EXPERT_COLUMN, Role.EXPERT_ROW)
ATTENTION_KERNELS = ("attention_decode", "attention_prefill")
CACHED = {"int4": "int4", "int8": "int8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "int8": "int8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
STORED = {
    DataType.INT8: WeightFormat.INT8,
    DataType.INT4: WeightFormat.INT4,
    DataType.FP4_E2M1: WeightFormat.MXFP4,
    DataType.FP8_E4M3: WeightFormat.MXFP8,
    DataType.FP8_E5M2: WeightFormat.MXFP8,
}


class GpuKernel(Struct, frozen=True):
    """One kernel of a step: the operator it is for, what it does, how often, whether another one takes it along."""

    operator: str
    row: dict[str, Any]
    repeat: int
    fused: bool = False


class ModelPrediction(Struct, frozen=True):
    """Kernels in program order with the seconds, joules and floor of one execution of each.

    ``share`` is the part of each kernel's work that is its operator's: two kernels stand for attention's backward pass,
    and a kernel of attention has values as wide as its keys where the operator's may be narrower.
    """

    kernels: tuple[GpuKernel, ...]
    operations: Operations
    seconds: Float
    joules: Float
    roofline: Float
    bound: tuple[str, ...]
    error: Float
    error_90: Float
    nearby: NDArray[np.bool_]
    share: Float

    @property
    def flops(self) -> Float:
        """FLOPs of one execution of each kernel."""
        return flops(self.operations) * self.share

    @property
    def repeats(self) -> Float:
        return np.array([k.repeat for k in self.kernels], np.float64)

    @property
    def by_operator(self) -> dict[str, float]:
        """Seconds of one execution of each operator that has a kernel."""
        found: dict[str, float] = defaultdict(float)
        for kernel, seconds in zip(self.kernels, self.seconds.tolist(), strict=True):
            found[kernel.operator] += seconds
        return dict(found)

    @property
    def total_joules(self) -> float:
        """Of one GPU."""
        return float((self.joules * self.repeats).sum())

    @property
    def kernel_bars(self) -> tuple[float, float]:
        """Bars of 50 and 90 % of the total if every kernel is off by its own, all one way."""
        times = self.seconds * self.repeats
        whole = max(float(times.sum()), 1e-30)
        return float((times * self.error).sum()) / whole, float((times * self.error_90).sum()) / whole

    @property
    def measured_share(self) -> float:
        """Share of the time that is of kernels which were measured near by."""
        times = self.seconds * self.repeats
        return float(times[self.nearby].sum()) / max(float(times.sum()), 1e-30)

    @property
    def unmeasured(self) -> list[str]:
        """Kinds of kernels of which the GPU has no measured row near by, sorted."""
        return sorted(
            {str(k.row["op"]) for k, near in zip(self.kernels, self.nearby.tolist(), strict=True) if not near}
        )


def kernels_of(graph: Graph, groups: Mapping[str, int] | None = None) -> list[GpuKernel]:
    """Kernels that one step of ``graph``, the part of one GPU, is made of.

    Parameters
    ----------
    groups
        GPUs along each dimension of the plan, whose messages are kernels, too.

    Raises
    ------
    NotSupported
        For operators that these kernels do not do.
    """
    found: list[GpuKernel] = []
    experts: set[tuple[Any, ...]] = set()
    operators = [o for o in graph.operators() if not isinstance(o, SharedAttention)]
    for at, operator in enumerate(operators):
        if isinstance(operator, Collective):
            if (gpus := (groups or {}).get(operator.dimension, 1)) > 1:
                message = {
                    "op": operator.operation,
                    "gpus": gpus,
                    "bytes": max(operator.input_bytes, 1),
                    "dtype": "fp16",
                }
                found.append(GpuKernel(operator.name, message, operator.repeat))
            continue
        follower = next((o for o in operators[at + 1 :] if not isinstance(o, Collective)), None)
        row = None if is_optimizer(operator) else _row(graph, operator)
        if row is None:
            continue
        if (more := _of_all_experts(operators, operator)) is None:
            continue
        row |= more
        fused = _is(operator, (VectorFunction.ADD,)) and follower is not None and _is(follower, NORMS)
        if _is(operator, (VectorFunction.ADD,)) and not fused:  # the next block starts with its norm
            block = [o for o in operators if o.block == operator.block and not isinstance(o, Collective)]
            fused = block[-1] is operator and operator.repeat > 1 and _is(block[0], NORMS)
        if row["op"] == "grouped_gemm":  # of one layer those of other rows are part of the same kernel
            fused = _layer(operator) in experts
            experts.add(_layer(operator))
        found.append(GpuKernel(operator.name, row, operator.repeat, fused))
    if not graph.requests:
        return found
    return _varlen(found, {o.name: (o.block, o.place.layer, o.place.role) for o in operators})


def _varlen(kernels: list[GpuKernel], layers: Mapping[str, tuple[str, int, Role]]) -> list[GpuKernel]:
    """One kernel for all requests of a layer, whatever their lengths, as serving stacks launch it.

    Next tokens have their requests' keys in all: as many requests of their mean length, which cut their work into equal
    splits (FlashAttention's and FlashInfer's kernels for unequal lengths). They stand for the first of their operators.
    Prompts are each by itself, and what a kernel takes for one token of one request is counted once.
    """
    found: list[GpuKernel] = []
    places: dict[tuple[Any, ...], int] = {}
    keys: dict[int, int] = {}
    launched: set[tuple[str, int, Role]] = set()
    for kernel in kernels:
        row = kernel.row
        if row["op"] not in ATTENTION_KERNELS:
            found.append(kernel)
            continue
        layer = layers[kernel.operator]
        if row["op"] == "attention_prefill":
            found.append(replace(kernel, fused=layer in launched))
            launched.add(layer)
            continue
        rest = tuple((name, value) for name, value in row.items() if name not in ("batch", "kv_len"))
        at = places.setdefault((layer, kernel.repeat, rest), len(found))
        if at == len(found):
            found.append(replace(kernel, fused=layer in launched))
            launched.add(layer)
            keys[at] = row["batch"] * row["kv_len"]
            continue
        keys[at] += row["batch"] * row["kv_len"]
        batch = found[at].row["batch"] + row["batch"]
        found[at] = replace(found[at], row=found[at].row | {"batch": batch, "kv_len": round(keys[at] / batch)})
    return found


def predict_model(
    gpu: Gpu, graph: Graph, *, groups: Mapping[str, int] | None = None, sustained: bool = False, unfused: bool = False
) -> ModelPrediction:
    """Time and energy of one step of ``graph``, the part of one GPU.

    Inference has a serving stack's kernels, which take residual sums along with norms; training launches each, and is
    always under the board's power limit.

    Parameters
    ----------
    groups
        GPUs of one node along each dimension of the plan; without, messages take no time.
    sustained
        Under the board's power limit, as runs of seconds are.
    unfused
        Attention is products with their scores in memory.
    """
    if graph.compressions:
        raise NotSupported(f"kernels for compressed weights in the GPU model ({gpu.name}, weight_compression)")
    training = graph.phase is Phase.TRAINING
    kernels = kernels_of(graph, groups)
    wider = _value_widths(graph)
    if unfused:  # forward, products of their own widths; backward one and a half times as many passes as forward
        forward = [o for o in graph.operators() if isinstance(o, Attention) and not o.place.backward]
        widths = {o.name: o.v_head_dim for o in forward}
        wider = {name: width for name, width in wider.items() if name not in widths}
        of = [(kernel, widths.get(kernel.operator, kernel.row.get("head_dim", 0))) for kernel in kernels]
        kernels = [replace(kernel, row=row) for kernel, width in of for row in _scores(kernel.row, width)]
    shares: dict[str, float] = {}
    if training:
        kernels = [replace(kernel, fused=False) for kernel in kernels]
        if not unfused:
            kernels, shares = _with_backward(gpu, graph, kernels)
    part = np.array([shares.get(kernel.operator, 1.0) for kernel in kernels])
    values = np.array([1.0 if k.operator in shares else wider.get(k.operator, 1.0) for k in kernels])
    operations = make_operations([k.row for k in kernels])
    found = predict(gpu, operations, sustained=training or sustained, cache_write=not training, quantized=not training)
    fused = np.array([k.fused for k in kernels], bool)
    efficiency = load_efficiency(gpu.architecture)
    launch = efficiency.elementwise.launch
    adds = operations.among(Op.ADD)  # what another kernel takes along is one more operand read
    once = np.where(adds, compulsory_bytes(operations) / ADD_PASSES / gpu.memory_bandwidth, 0.0)
    experts = operations.among(Op.GROUPED_GEMM)
    saved = np.where(experts, (efficiency.grouped or efficiency.gemm).launch, launch)
    seconds = np.where(fused, np.maximum(found.seconds - saved, once), found.seconds) * part
    joules = np.where(fused, np.maximum(found.joules - saved * gpu.idle_power, 0.0), found.joules) * part
    joules = joules - (found.joules - gpu.idle_power * found.seconds) * part * (1.0 - values)
    floor = _floor(gpu, operations) * part * values
    for at, kernel in enumerate(kernels):
        if (
            kernel.fused and kernel.row["op"] in ATTENTION_KERNELS
        ):  # of what any kernel takes, the launch is off already
            least = predict(gpu, make_operations([kernel.row | {"batch": 1, "q_len": 1, "kv_len": 1}]))
            seconds[at] = max(seconds[at] - least.seconds[0] + launch, 0.0)
    seconds = np.maximum(seconds, floor)
    if training:
        joules = joules - gpu.idle_power * seconds * (1.0 - values)
        seconds = seconds * values
    chunks = {o.name for o in graph.operators() if isinstance(o, Attention) and o.follows}
    times = np.where([k.operator in chunks for k in kernels], UNCALIBRATED, 1.0)
    bound, bars = tuple(found.bound), (times * found.error, times * found.error_90)
    return ModelPrediction(
        tuple(kernels), operations, seconds, joules, floor, bound, *bars, found.nearby, part * values
    )


def predict_rows(
    gpu: Gpu, rows: Sequence[Mapping[str, Any]], *, sustained: bool = False, cache_write: bool = True
) -> tuple[Float, Float]:
    """Seconds and joules of one execution of each kernel of inference by itself, as `predict_model` has them."""
    operations = make_operations(rows)
    seconds, joules = predict_times(gpu, operations, sustained=sustained, cache_write=cache_write)
    return np.maximum(seconds, _floor(gpu, operations)), joules


def measured_note(gpu: Gpu, share: float, unmeasured: Sequence[str], software: str = "") -> str:
    """Which part of a time rests on measured rows near by, and which kernels on the mechanism alone."""
    alone = ", ".join(unmeasured)
    if is_changed(gpu):
        theirs = library_gpu(gpu.name)
        kept = theirs is not None and theirs.architecture == gpu.architecture
        what = "; it keeps the residuals of that one" if kept else ""
        return f"outside of what was measured: this is not the {gpu.name} whose kernels were timed{what}"
    if share == 0.0 and load_efficiency(gpu.architecture).measured:
        return f"by the mechanism alone, no measured row of {gpu.name} near by: {alone}"
    if share == 0.0:
        by = f" by '{software}'" if software else ""
        return f"outside of what was measured: nothing like these kernels ({alone}){by} is in the tables of {gpu.name}"
    measured = f"kernels of {share:.0%} of the time were measured near by on {gpu.name}"
    return f"{measured}; by the mechanism alone: {alone}" if unmeasured else measured


UNCALIBRATED = 3.0
"""Times the error of a kernel that is asked for shapes that it was not measured for: a guess, as nothing is known."""


def chunk_notes(graph: Graph) -> list[str]:
    """What a reader of predicted times should know where several tokens follow earlier ones.

    Kernels were measured for whole prompts and for one token of each sequence. The models count queries, keys and the
    pairs that the mask admits, and so have a time for others; nobody has measured how far it is off.
    """
    if not any(isinstance(o, Attention) and o.follows for o in graph.operators()):
        return []
    kernel = "a token's" if graph.phase is Phase.DECODE else "a prompt's"
    text = f"attention of several tokens behind earlier ones: {kernel} kernel; its error is not calibrated"
    return [f"{text}, three times the kernel's is a guess"]


def _with_backward(gpu: Gpu, graph: Graph, kernels: Sequence[GpuKernel]) -> tuple[list[GpuKernel], dict[str, float]]:
    """Kernels of a training step with those of attention's backward pass as what they are: one kernel each.

    A graph has two operators in the place of one: the first has two of its five products, the second three. Each stands
    for that share of the kernel's time, more where values are wider than keys. Heads that no such kernel has, and
    formats, stay what the graph makes of them: attention of the forward pass.
    """
    found, shares = [], {}
    attentions = {o.name: o for o in graph.operators() if isinstance(o, Attention)}
    known = has_backward(load_efficiency(gpu.architecture))
    for kernel in kernels:
        operator = attentions.get(kernel.operator)
        step = operator.place.step if operator is not None else Pass.FORWARD
        if operator is None or not known or step not in (Pass.VALUES_GRADIENT, Pass.KEYS_GRADIENT):
            found.append(kernel)
            continue
        first = step is Pass.VALUES_GRADIENT
        keys, values = (
            (operator.head_dim, operator.v_head_dim) if first else (operator.v_head_dim // 2, operator.head_dim)
        )
        if keys > MOST_HEAD or kernel.row["dtype"] not in ("bf16", "fp16"):
            found.append(kernel)
            continue
        found.append(replace(kernel, row=kernel.row | {"op": "attention_backward", "head_dim": keys}))
        products = keys + values if first else 2 * keys + values
        shares[kernel.operator] = products / (PRODUCTS * keys)
    return found, shares


def _value_widths(graph: Graph) -> dict[str, float]:
    """Work of attention relative to one whose values are as wide as its keys, which the kernels' rows have.

    It is that of the products as of the bytes: keys and queries are as wide as each other, and values and results.
    Where the backward pass is not a kernel of its own, two of its five products are one of that kind, and three are the
    wider other.
    """
    attentions = [o for o in graph.operators() if isinstance(o, Attention)]
    return {o.name: (o.head_dim + o.v_head_dim) / (2 * o.head_dim) for o in attentions}


def _scores(row: dict[str, Any], values: int) -> list[dict[str, Any]]:
    """Attention as products with its scores in memory, their softmax and dropout between; values of such a width."""
    if row["op"] != "attention_prefill":
        return [row]
    many, q, k, d = row["batch"] * row["heads"], row["q_len"], row["kv_len"], row["head_dim"]
    common = {"dtype": row["dtype"]}
    return [
        {"op": "gemm", "m": q, "n": k, "k": d, "batch": many, **common},
        {"op": "softmax", "m": many * q, "n": k, **common},
        {"op": "gelu", "m": many * q, "n": k, **common},  # dropout: one read, one write
        {"op": "gemm", "m": q, "n": values, "k": k, "batch": many, **common},
    ]


def _floor(gpu: Gpu, o: Operations) -> Float:
    """Seconds below which no GPU can be: arithmetic; parameters and cache, which no cache holds from step to step.

    Of a collective, its bytes over the links.
    """
    weights = o.weight_bytes()
    decode = o.among(Op.ATTENTION_DECODE)
    behind = o.seen_keys() - np.where(o.causal, o.q_len, 0)  # a prompt's own keys may be in the last cache
    known = np.where(decode, o.kv_len, np.where(o.reads_cache(), behind, 0))
    cache = 2 * o.batch * known * o.kv_heads * o.head_dim * o.kept_bytes()
    peaks = peak_rates(o, gpu)
    found: Float = np.maximum.reduce(
        [
            flops(o) / np.where(peaks > 0, peaks, np.inf),
            (weights + cache) / gpu.memory_bandwidth,
            link_bytes(o) / gpu.link_bandwidth,
        ]
    )
    return found


def _is(operator: Operator, functions: tuple[VectorFunction, ...]) -> bool:
    return isinstance(operator, Vector) and operator.function in functions


def _stored(product: Gemm) -> dict[str, Any]:
    """Columns that say how a product's weights are stored."""
    packing, sparsity = product.packing, product.sparsity
    if sparsity is not None and sparsity != Sparsity(2, 4):
        raise NotSupported(f"{product.name}: weights {sparsity} sparse on a GPU; kernels have 2:4 (weight_sparsity)")
    packed: dict[str, Any] = {}
    if packing is not None:
        stored = STORED[packing.dtype]
        if DTYPES.get(product.precision.value) not in PACKED_BESIDE[stored]:
            formats = f"weights in {stored} with operands in {product.precision.value}"
            known = one_of(PACKED_BESIDE[stored])
            raise NotSupported(f"{product.name}: {formats} on a GPU; kernels have operands in {known} (precision)")
        packed = {"weights": stored.value, "group": packing.group}
    return packed | ({} if sparsity is None else {"sparsity": "2of4"})


def _kept(graph: Graph, attention: Attention) -> dict[str, Any]:
    """Columns that say in what keys and values are kept: what attention reads, or what a prompt's append writes."""
    cached = attention.cached
    if cached is None:
        across = attention.role is Role.CROSS_ATTENTION
        append = graph.beside(attention, Role.CROSS_CACHE if across else Role.CACHE)
        cached = append.cached if isinstance(append, Vector) else None
    if cached is None or cached.dtype is attention.precision:
        return {}
    if attention.cached is None and not attention.causal:
        return {}  # an encoder's keys of this step are read as they were made
    if attention.precision not in (DataType.BF16, DataType.FP16) or cached.dtype.value not in CACHED:
        formats = f"keys and values in {cached} beside operands in {attention.precision.value}"
        raise NotSupported(f"{formats} on a GPU; kernels have operands in fp16 and bf16 (cache_precision, precision)")
    return {"cache": CACHED[cached.dtype.value]}


def _of_all_experts(operators: Sequence[Operator], operator: Operator) -> dict[str, Any] | None:
    """What else columns say of the first operator for all experts of its layer, and nothing for the others.

    Activations have the rows of all experts. So have products, where tokens draw their experts.
    """
    drawn = isinstance(operator, Gemm) and operator.by_chance
    if not drawn and operator.role is not Role.EXPERT_ACTIVATION:
        return {}
    found = [o for o in operators if _layer(o) == _layer(operator)]
    if found[0] is not operator:
        return None
    if not drawn:
        return {"m": sum(o.rows for o in found if isinstance(o, Vector))}
    products = [o for o in found if isinstance(o, Gemm)]
    columns = {"m": sum(o.rows for o in products), "batch": sum(o.stored or o.batch for o in products)}
    return {**columns, "dealt": Dealt.CHANCE.value, "top_k": max(o.chosen or 1 for o in products)}


def _layer(operator: Operator) -> tuple[Any, ...]:
    """Which operators are of one layer, and do the same there."""
    return operator.block, operator.place.layer, operator.role, operator.place.step


def _row(graph: Graph, operator: Operator) -> dict[str, Any] | None:
    dtype = DTYPES.get(operator.precision.value)
    if dtype is None:
        more = "; loom gpu times products alone" if operator.precision is DataType.INT4 else ""
        raise NotSupported(f"{operator.name} in {operator.precision.value} on a GPU{more}")
    if isinstance(operator, Gemm):
        sizes = {"m": operator.m, "n": operator.n, "k": operator.k, "batch": operator.batch}
        grouped = operator.role in EXPERT_PRODUCTS and operator.place.step is not Pass.WEIGHT_GRADIENT
        if grouped:  # the experts of a layer in one kernel, their rows one after the other
            sizes["m"] = operator.rows
        return {"op": "grouped_gemm" if grouped else "gemm", **sizes, "dtype": dtype, **_stored(operator)}
    if isinstance(operator, Attention):
        decode = graph.phase is Phase.DECODE or (operator.q_len == 1 and operator.past > 0)
        keys = operator.kv_read if decode else operator.kv_len  # a token's kernel is asked for the keys of its window
        window = {} if operator.window is None or operator.window >= keys else {"window": operator.window}
        return {
            "op": "attention_decode" if decode else "attention_prefill",
            "batch": operator.batch,
            "q_len": operator.q_len,
            "kv_len": keys,
            "heads": operator.heads,
            "kv_heads": operator.kv_heads,
            "head_dim": operator.head_dim,
            "dtype": dtype,
            "causal": str(operator.causal).lower(),
            **window,
            **_kept(graph, operator),
        }
    if isinstance(operator, Vector):
        if operator.function is VectorFunction.KV_APPEND:
            return None
        kernel = KERNEL_OF.get(operator.function)
        if kernel is None:
            raise NotSupported(f"{operator.name}: {operator.function.value} on a GPU")
        width = "fp16" if operator.precision.size(2) == 4 else dtype
        cols = operator.cols
        combines = operator.function is VectorFunction.COMBINE  # of experts, or of windows of an image
        if operator.place.backward or combines:  # as many passes over memory as operands and results
            kernel, cols = Op.ADD, -(-cols * (operator.inputs + operator.outputs) // ADD_PASSES)
        return {"op": str(kernel), "m": operator.rows, "n": cols, "dtype": width}
    raise NotSupported(f"{operator.name} on a GPU")

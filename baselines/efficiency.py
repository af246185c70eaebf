"""How well kernels use a GPU: a few constants per architecture, fitted by ``benchmarks/gpu_fit.py`` to training rows.

An architecture that nobody has measured for us takes the constants of its nearest relative, and says so in `basis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from siliconloom.arch.document import Description, Document

FOLDER = Path(__file__).parent / "efficiency"


class Constants(Description):
    """Constants of one kind of kernel, in the order in which the kernels' models take them."""

    def vector(self) -> NDArray[np.float64]:
        """All of them, in order."""
        return np.array([getattr(self, name) for name in type(self).model_fields], np.float64)


class GemmEfficiency(Constants):
    """Matrix products (`siliconloom.baselines.gemm`)."""

    launch: float = Field(gt=0, description="seconds from launch to first work and from last work to end")
    tile_loss: float = Field(gt=0, description="main-loop time of a tile (a, b) grows by tile_loss x (1/a + 1/b)")
    mainloop: float = Field(gt=0, description="share of the matrix units' rate at the boost clock, without tile_loss")
    wave: float = Field(ge=0, description="cycles a tile takes besides its main loop")
    tail: float = Field(ge=0, description="how much of a wave a partly filled last one takes: 0 its share, 1 all")
    stream: float = Field(gt=0, le=1, description="share of the DRAM's bandwidth")
    l2_rate: float = Field(gt=0, description="bytes per cycle from the L2 into one multiprocessor")
    reduction: float = Field(ge=0, description="time of joining split sums, relative to their bytes at the L2's rate")
    norm: float = Field(ge=1, description="how much compute, L2 and DRAM hinder each other: large is not at all")
    tau: float = Field(gt=0, description="seconds after which a burst meets the power limit")
    slow: float = Field(ge=0, description="how much longer products take then")
    quantize: float = Field(
        ge=0, description="seconds in which 8-bit activations are scaled and rounded, besides their bytes"
    )
    narrow: float = Field(gt=0, le=1, description="main loop's share in 8 bits and fewer, relative to 16")


class GroupedEfficiency(Constants):
    """Products of experts in one kernel (`siliconloom.baselines.grouped`)."""

    launch: float = Field(gt=0, description="seconds from launch to first work and from last work to end")
    mainloop: float = Field(gt=0, description="share of the matrix units' rate at the boost clock")
    narrow: float = Field(gt=0, le=1, description="main loop's share in 8 bits, relative to 16")
    wave: float = Field(ge=0, description="cycles a tile takes besides its main loop")
    load: float = Field(gt=0, description="bytes per cycle from the L2 into one multiprocessor")
    stream: float = Field(gt=0, le=1, description="share of the DRAM's bandwidth")
    norm: float = Field(ge=1, description="how much compute, loads and DRAM hinder each other: large is not at all")


class Prefill(Constants):
    """Attention of many queries (`siliconloom.baselines.attention.prefill_times`)."""

    launch: float = Field(gt=0)
    mainloop: float = Field(gt=0, le=1)
    overlap: float = Field(ge=0, le=1, description="share of the exponentials that the matrix units' work hides")
    block: float = Field(ge=0, description="cycles a block of keys takes besides")
    item: float = Field(ge=0, description="cycles a block of queries takes besides")
    tail: float = Field(ge=0, le=1)
    stream: float = Field(gt=0, le=1)
    norm: float = Field(ge=1)
    store: float = Field(ge=0, description="seconds in which a full load of threads writes its keys and values")


class Decode(Constants):
    """Attention of one query (`siliconloom.baselines.attention.decode_times`)."""

    launch: float = Field(gt=0)
    mainloop: float = Field(gt=0, le=1)
    latency: float = Field(ge=0, description="cycles of a block of keys where nothing else is there to hide its loads")
    item: float = Field(ge=0)
    tail: float = Field(ge=0, le=1)
    stream: float = Field(gt=0, le=1)
    join: float = Field(ge=0, description="seconds in which splits are joined")
    join_each: float = Field(ge=0, description="more for each split")
    norm: float = Field(ge=1)


class Backward(Constants):
    """Attention's backward pass by kernels of their own (`siliconloom.baselines.attention_backward`)."""

    launch: float = Field(gt=0, description="seconds")
    mainloop: float = Field(gt=0, le=1, description="share of the matrix units' rate in its five products")
    item: float = Field(ge=0, description="cycles of a block of keys besides its walk over the queries")
    tail: float = Field(ge=0, le=1)
    stream: float = Field(gt=0, le=1)
    norm: float = Field(ge=1)


class AttentionKernel(Description):
    """Attention by another program than the one that an architecture's own constants are of."""

    kernels: Literal["flash-attention-2", "flash-attention-3"] = Field(description="whose blocks it has")
    splits: bool = Field(default=False, description="keys of prompts of few blocks are split, too")
    prefill: Prefill
    decode: Decode
    backward: Backward | None = Field(default=None, description="left out: derived from the forward pass")


class Elementwise(Constants):
    """Norms, activations, additions (`siliconloom.baselines.elementwise`).

    Each kind's name is its share of the DRAM's bandwidth; ``columns_`` are cycles of a row's column in kinds that sum
    a row before they write it, ``elements_`` elements a cycle of a multiprocessor, 0 where arithmetic never limits.
    """

    launch: float = Field(gt=0, description="seconds")
    rmsnorm: float = Field(gt=0, le=1)
    layernorm: float = Field(gt=0, le=1)
    softmax: float = Field(gt=0, le=1)
    silu_mul: float = Field(gt=0, le=1)
    gelu: float = Field(gt=0, le=1)
    add: float = Field(gt=0, le=1)
    rope: float = Field(gt=0, le=1)
    embedding: float = Field(gt=0, le=1)
    kept: float = Field(0.0, ge=0, le=1, description="share of the last cache whose bytes need not come from memory")
    l2_rate: float = Field(0.0, ge=0, description="bytes a cycle of a multiprocessor from the last cache, with kept")
    reduce: float = Field(0.0, ge=0, description="seconds in which the threads of a row's block join their sums")
    columns_rmsnorm: float = Field(0.0, ge=0)
    columns_layernorm: float = Field(0.0, ge=0)
    columns_softmax: float = Field(0.0, ge=0)
    elements_rmsnorm: float = Field(0.0, ge=0)
    elements_layernorm: float = Field(0.0, ge=0)
    elements_softmax: float = Field(0.0, ge=0)
    elements_silu_mul: float = Field(0.0, ge=0)
    elements_gelu: float = Field(0.0, ge=0)
    elements_add: float = Field(0.0, ge=0)
    elements_rope: float = Field(0.0, ge=0)
    elements_embedding: float = Field(0.0, ge=0)

    def by_kind(self, prefix: str, kinds: Sequence[str], default: float) -> NDArray[np.float64]:
        """A constant of each of the kinds of kernels, by the name that begins with ``prefix``."""
        return np.array([getattr(self, prefix + kind, default) for kind in kinds])

    @model_validator(mode="after")
    def _complete(self) -> Elementwise:
        if (self.kept > 0) != (self.l2_rate > 0):
            raise ValueError("kept and l2_rate are given together")
        return self


class CollectiveEfficiency(Constants):
    """NCCL's collectives (`siliconloom.baselines.collective`); shares are of the link's bandwidth."""

    launch: float = Field(gt=0)
    step_ll: float = Field(gt=0, description="seconds of a step of protocol LL")
    share_ll: float = Field(gt=0, le=1)
    pair_ll: float = Field(gt=0, le=1, description="of that share, what two GPUs reach, whose steps do not overlap")
    spread: float = Field(ge=0, description="seconds in which LL's work is spread over all channels")
    spread_each: float = Field(ge=0, description="more for each GPU beyond two")
    wait_ll128: float = Field(ge=0, description="seconds before protocol LL128's first step, beside the launch")
    step_ll128: float = Field(gt=0)
    share_ll128: float = Field(gt=0, le=1)
    wait_simple: float = Field(ge=0)
    step_simple: float = Field(gt=0)
    share_simple: float = Field(gt=0, le=1)
    local: float = Field(gt=0, description="share of the memory's bandwidth at which a GPU's own part is copied")
    wait_nvls: float = Field(ge=0)
    share_nvls: float = Field(gt=0, le=1)
    step_direct: float = Field(gt=0, description="seconds of a small all-to-all, beside the launch")
    share_small: float = Field(gt=0, le=1, description="of a small all-to-all, to each peer")
    fill_direct: float = Field(ge=0, description="seconds of an all-to-all in chunks that fill few channels")
    wait_direct: float = Field(ge=0)
    share_direct: float = Field(gt=0, le=1, description="of all-to-all")
    ramp: float = Field(ge=0, description="seconds that long messages lose, as they leave the caches")
    filled: float = Field(gt=0, description="seconds of moving after which half of that is lost")


class TwoShots(Constants):
    """All-reduces in two shots."""

    barrier: float = Field(ge=0, description="seconds of the barrier between them")
    share: float = Field(gt=0, le=1)


class InSwitch(Constants):
    """All-reduces in the switch (multimem)."""

    launch: float = Field(gt=0)
    share: float = Field(gt=0, le=1)


class OneShotEfficiency(Description):
    """A program's own all-reduces (`siliconloom.baselines.one_shot`); shares are of the link's bandwidth.

    Ways without constants are not taken: NCCL is.
    """

    launch: float = Field(gt=0, description="seconds from launch to end of one shot of nothing, its barrier in it")
    peer: float = Field(ge=0, description="more for each other GPU")
    share: float = Field(gt=0, le=1)
    two: TwoShots | None = None
    switch: InSwitch | None = None


class Power(Constants):
    """Energy of what a kernel does, beside the idle power."""

    flop: float = Field(gt=0, description="joules per 16-bit floating-point operation of the matrix units")
    byte: float = Field(gt=0, description="joules per byte of the DRAM")


class ErrorBars(Description):
    """Median absolute error on the shape families that the fit never saw, or a stated guess where nothing is known."""

    gemm: float = Field(gt=0)
    attention_prefill: float = Field(gt=0)
    attention_decode: float = Field(gt=0)
    elementwise: float = Field(gt=0)
    collective: float = Field(gt=0)


class Efficiency(Description):
    """Constants of an architecture."""

    kind: Literal["gpu_efficiency"]
    architecture: str
    basis: str = Field(min_length=1, description="what they were fitted on")
    measured: bool = Field(description="fitted on measurements of this architecture")
    limited: bool = Field(
        default=False,
        description="the power limit acts on bursts too; constants fitted to bursts have their clocks in them",
    )
    kernels: Literal["mma", "wgmma"]
    attention: Literal["flash-attention-2", "flash-attention-3"]
    gemm: GemmEfficiency
    grouped: GroupedEfficiency | None = Field(
        default=None, description="left out: products of experts are products in a batch"
    )
    prefill: Prefill
    decode: Decode
    backward: Backward | None = Field(
        default=None, description="left out: derived from FlashAttention-2's forward pass"
    )
    elementwise: Elementwise
    collective: CollectiveEfficiency
    one_shot_by: dict[str, OneShotEfficiency] = Field(default={}, description="all-reduces of programs, by name")
    power: Power
    error: ErrorBars
    splits: bool = Field(default=False, description="keys of prompts of few blocks are split, as those of next tokens")
    attention_by: dict[str, AttentionKernel] = Field(default={}, description="attention of other programs, by name")

    def by_program(self, software: str) -> Efficiency:
        """Constants with the attention of a program, where it is one of its own."""
        kernel = self.attention_by.get(software)
        if kernel is None:
            return self
        parts = {"prefill": kernel.prefill, "decode": kernel.decode, "backward": kernel.backward}
        return self.model_copy(update={"attention": kernel.kernels, "splits": kernel.splits, **parts})


PARTS = ("gemm", "grouped", "prefill", "decode", "backward", "elementwise", "collective", "power")
"""Kinds of kernels, and energy, whose constants may be another architecture's."""
Part = TypeVar("Part", bound=Constants)


@cache
def load_efficiency(architecture: str) -> Efficiency:
    """Constants of ``architecture``; those it does not state are its relative's (``like``).

    A part that is the name of an architecture is that one's.
    """
    document = Document.load(FOLDER / f"{architecture}.yaml")
    like = document.data.pop("like", None)
    for key, value in document.data.items():
        if key in PARTS and isinstance(value, str):
            document.data[key] = Document.load(FOLDER / f"{value}.yaml").data[key]
    if like is not None:
        base = Document.load(FOLDER / f"{like}.yaml")
        for key, value in document.data.items():
            base.data[key] = base.data[key] | value if isinstance(value, dict) else value
        document = Document(base.data, base.positions | document.positions, document.source)
    document.expect_kind(["gpu_efficiency"])
    return document.validate(Efficiency)

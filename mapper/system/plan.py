"""One way to split a model over chips."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import gcd
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import asdict

from siliconloom.arch import LoomError
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.quantity import BANDWIDTH, parse
from siliconloom.mapper.experts import PLACEMENTS
from siliconloom.mapper.system.parallel import Split

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_2", "v_half"]
Recompute = Literal["none", "selective", "full"]
AttentionKernel = Literal["flash", "unfused"]
ContextScheme = Literal[
    "ring", "striped", "zigzag", "token_ring", "ulysses", "hybrid", "all_gather", "lightseq", "packed"
]
Overlap = Literal["none", "tokens", "tiles", "nano", "ladder", "shortcut"]
Offload = Literal["none", "optimizer", "parameters"]


class Plan(Struct, frozen=True):
    """Degrees of parallelism and how a step is run.

    Parameters
    ----------
    data, tensor, context, pipeline
        Chips along each dimension; their product is all chips.
    expert, expert_tensor
        Chips that hold different experts, and chips that share each expert (0: as many as ``tensor``). They are chips
        of the other dimensions but the pipeline's.
    expert_load
        Rows of the experts of the chip that gets most, over the mean; all wait for it. A trace of routing has it of a
        placement, see `mapper.system.experts`.
    expert_copies
        Further experts on each chip, copies of popular ones; inference's.
    context_scheme, context_heads
        How context-parallel chips' queries meet all keys; of ``hybrid``, chips that share the heads.
    microbatch
        Sequences that go through a pipeline together, per replica; 0 lets inference choose.
    schedule, chunks
        Order of the pipeline's passes; stages of each device, above 1 for interleaved only.
    zero
        What the data-parallel replicas share (Rajbhandari et al., SC 2020): 0 nothing, 1 the optimizer's state, 2 the
        gradients too, 3 the parameters too.
    zero_group
        Replicas that share it, of which there are as many groups as it takes (hierarchical partition: MiCS, ZeRO++'s
        hpZ, FSDP's hybrid sharding); 0 for all.
    recompute
        Activations computed again in the backward pass: none, those of attention, or all of a layer.
    sequence_parallel
        Norms and residual sums are shared over the tensor-parallel chips (Korthikanti et al., 2022).
    attention
        One fused kernel, or products with their scores in memory.
    overlap
        What messages pass beside, see `mapper.system.overlap`.
    overlap_gradients
        A layer's gradients are summed over the replicas as soon as the last microbatch has made them.
    attention_chips
        Chips besides those of the dimensions, which do all attention, see `mapper.system.disaggregation`.
    vocabulary
        Embedding and head are shared by all stages of the pipeline, each with a part of the vocabulary (Yeung et al.,
        2024, algorithm 2: one microbatch more in flight).
    outer
        Steps between sums over the replicas, which take their own steps meanwhile; the sum passes beside the steps
        that follow it (CO2, Sun et al., 2024). A change of the optimizer.
    offload, offload_activations
        What a training step keeps in the host's memory, see `mapper.system.host_memory`.
    host_bandwidth, host_memory_bandwidth
        Bytes a second of a chip's link to its host, each way, and of its share of the host's memory.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    microbatch: int = 1
    schedule: ScheduleName = "1f1b"
    chunks: int = 1
    zero: int = 0
    zero_group: int = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    attention: AttentionKernel = "flash"
    context: int = 1
    context_scheme: ContextScheme = "ring"
    context_heads: int = 1
    expert: int = 1
    expert_tensor: int = 0
    expert_load: float = 1.0
    expert_copies: int = 0
    overlap: Overlap = "none"
    overlap_gradients: bool = True
    attention_chips: int = 0
    vocabulary: bool = False
    outer: int = 1
    offload: Offload = "none"
    offload_activations: bool = False
    host_bandwidth: float | None = None
    host_memory_bandwidth: float | None = None

    @property
    def workers(self) -> int:
        """Chips that hold the model."""
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def chips(self) -> int:
        return self.workers + self.attention_chips

    @property
    def split(self) -> Split:
        """How the chips of one replica's stage share its operators."""
        sharing = self.expert_tensor or None
        return Split(
            self.tensor,
            self.sequence_parallel,
            self.context,
            self.context_scheme,
            self.expert,
            sharing,
            self.expert_load,
            self.expert_copies,
        )

    def sharing(self, replicas: int) -> int:
        """Replicas, out of so many, that share the optimizer's state and what else ``zero`` says."""
        if not self.zero:
            return 1
        return gcd(self.zero_group, replicas) if self.zero_group else replicas

    @property
    def expert_replicas(self) -> int:
        """Chips that hold the same part of the same experts."""
        return self.data * self.context * self.tensor // (self.expert * self.split.sharing)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def text(self, *, training: bool = True) -> str:
        """``data 8, tensor 4, pipeline 2, microbatch 1, 1f1b``."""
        parts = [f"data {self.data}", f"tensor {self.tensor}"]
        if self.context > 1:
            parts.append(f"context {self.context} ({self.context_scheme})")
        parts.append(f"pipeline {self.pipeline}")
        if self.expert > 1:
            shared = f" of {self.expert_tensor} chips" if self.expert_tensor else ""
            more = f"{self.expert_copies} cop{'ies' if self.expert_copies > 1 else 'y'}"
            copies = f" with {more} each" if self.expert_copies else ""
            load = f" (load {self.expert_load:g})" if self.expert_load > 1 else ""
            parts.append(f"expert {self.expert}{shared}{copies}{load}")
        if self.microbatch:
            parts.append(f"microbatch {self.microbatch}")
        if training:
            parts.append(self.schedule + (f" x{self.chunks}" if self.chunks > 1 else ""))
        if self.zero:
            parts.append(f"ZeRO-{self.zero}" + (f" in groups of {self.zero_group}" if self.zero_group else ""))
        if self.sequence_parallel:
            parts.append("sequence parallel")
        if self.recompute != "none":
            parts.append(f"recompute {self.recompute}")
        if self.attention_chips:
            parts.append(f"attention on {self.attention_chips} chips more")
        if self.vocabulary:
            parts.append("vocabulary parallel")
        if self.outer > 1:
            parts.append(f"outer step every {self.outer}")
        if self.offload != "none":
            parts.append("optimizer on the host" if self.offload == "optimizer" else "parameters on the host")
        if self.offload_activations:
            parts.append("activations on the host")
        if self.overlap != "none":
            parts.append(f"overlap {self.overlap}")
        return ", ".join(parts)


_COUNTS = (
    "data",
    "tensor",
    "pipeline",
    "microbatch",
    "chunks",
    "zero",
    "zero_group",
    "context",
    "context_heads",
    "expert",
    "expert_tensor",
    "expert_copies",
    "attention_chips",
    "outer",
)
FROM_NONE = ("zero", "zero_group", "expert_tensor", "expert_copies", "attention_chips")
"""Counts that may be 0."""
KEYS: dict[str, Any] = {
    **dict.fromkeys(_COUNTS, int),
    **dict.fromkeys(("sequence_parallel", "overlap_gradients", "vocabulary", "offload_activations"), bool),
    **dict.fromkeys(("host_bandwidth", "host_memory_bandwidth"), BANDWIDTH),
    "offload": get_args(Offload),
    "expert_load": float,
    "expert_routing": str,
    "expert_placement": PLACEMENTS,
    "documents": tuple,
    "schedule": get_args(ScheduleName),
    "recompute": get_args(Recompute),
    "attention": get_args(AttentionKernel),
    "context_scheme": get_args(ContextScheme),
    "overlap": (*get_args(Overlap), "any"),
}
"""Keys that may be given, with what their values are."""
HOST_KEYS = ("offload", "offload_activations", "host_bandwidth", "host_memory_bandwidth")
"""Keys of what a training step keeps in the host's memory."""
TRAINING_ONLY = (
    "schedule",
    "chunks",
    "zero",
    "zero_group",
    "recompute",
    "overlap_gradients",
    "attention",
    "vocabulary",
    "outer",
    *HOST_KEYS,
)
"""Keys that mean nothing in inference."""


def refuse_host_keys(given: Mapping[str, Any]) -> None:
    """Refuse keys of what the host keeps that lack others, or change nothing; raises `LoomError`."""
    offload, kept = given.get("offload", "none"), given.get("offload_activations", False)
    for key, needed, why in (
        ("host_bandwidth", offload != "none" or kept, "plan.offload or plan.offload_activations"),
        ("host_memory_bandwidth", offload != "none", "plan.offload"),
    ):
        if key in given and not needed:
            raise LoomError(f"plan.{key}: changes nothing without {why}")
        if needed and key not in given:
            asked = f"plan.offload {offload}" if offload != "none" else "plan.offload_activations"
            raise LoomError(f"{asked}: needs plan.{key}, bytes a second of a chip's {HOST[key]}")


def refuse_training_keys(given: Mapping[str, Any]) -> None:
    """Refuse keys of a plan that mean nothing in inference; raises `LoomError`. What is so anyway changes nothing."""
    default = Plan()
    for key in TRAINING_ONLY:
        if key in given and given[key] != getattr(default, key):
            raise LoomError(f"plan.{key} is for training; set workload.phase=training")


def refuse_keys_of_one(given: Mapping[str, Any], plan: Plan, experts: int) -> None:
    """Refuse keys of how chips share what this plan, or this model, does not share; raises `LoomError`."""
    default = Plan()
    shared = {"context_scheme": plan.context > 1, "context_heads": plan.context > 1}
    shared["expert_tensor"] = experts > 1
    for key, does in shared.items():
        if not does and key in given and given[key] != getattr(default, key):
            why = "plan.context is 1" if key.startswith("context") else "the model has no experts"
            raise LoomError(f"plan.{key}: changes nothing: {why}")
    refuse_expert_keys(given, experts, plan.expert)


def refuse_expert_keys(given: Mapping[str, Any], experts: int, expert: int | None = None) -> None:
    """Refuse keys of experts' loads where they change nothing or contradict each other; raises `LoomError`.

    Parameters
    ----------
    experts
        Of the model; 1 where it has none.
    expert
        Chips that hold different experts, where that is known.
    """
    default = Plan()
    for key in ("expert_routing", "expert_placement", "expert_copies", "expert_load"):
        if key not in given or given[key] == getattr(default, key, None):
            continue
        if experts == 1 or expert == 1:
            why = "the model has no experts" if experts == 1 else "plan.expert is 1"
            raise LoomError(f"plan.{key}: changes nothing: {why}")
    if "expert_routing" in given and "expert_load" in given:
        raise LoomError("plan.expert_load: plan.expert_routing finds it; give one of them")
    if "expert_placement" in given and "expert_routing" not in given:
        raise LoomError("plan.expert_placement: changes nothing without plan.expert_routing")
    if "expert_placement" in given and expert == experts and not given.get("expert_copies"):
        raise LoomError(f"plan.expert_placement: changes nothing: each of the {experts} chips has one expert")


HOST = {"host_bandwidth": "link to its host, each way", "host_memory_bandwidth": "share of the host's memory"}
MOST_BANDWIDTH = 1e18
_WHOLE = re.compile(r"\s*\d{1,15}\s*", re.ASCII)


def parse_plan(assignments: list[tuple[str, str]]) -> dict[str, Any]:
    """Values of ``--set plan.KEY=VALUE``; raises `LoomError` for unknown keys and values."""
    found: dict[str, Any] = {}
    for key, text in assignments:
        shown = f"--set plan.{key}={text}"
        kind = KEYS.get(key)
        if kind is None:
            near = nearest_name(key, KEYS)
            raise LoomError(f"{shown}: unknown key; " + (f"did you mean '{near}'?" if near else ", ".join(KEYS)))
        if kind is int:
            low = 0 if key in FROM_NONE else 1
            if not _WHOLE.fullmatch(text) or int(text) < low or (key == "zero" and int(text) > 3):
                raise LoomError(f"{shown}: must be a whole number from {low}" + (" to 3" if key == "zero" else ""))
            found[key] = int(text)
        elif kind is str:
            if not text.strip():
                raise LoomError(f"{shown}: must be the name of a file")
            found[key] = text
        elif kind is tuple:
            if not all(map(_WHOLE.fullmatch, text.split(","))) or min(map(int, text.split(","))) < 1:
                raise LoomError(f"{shown}: must be the tokens of each document, such as 4096,4096,8192")
            found[key] = tuple(map(int, text.split(",")))
        elif kind is float:
            if not re.fullmatch(r"\s*\d{1,15}(\.\d{0,15})?\s*", text) or float(text) < 1:
                raise LoomError(f"{shown}: must be a number from 1")
            found[key] = float(text)
        elif kind is BANDWIDTH:
            try:
                found[key] = float(parse(text, BANDWIDTH, "64 GB/s"))
            except ValueError as error:
                raise LoomError(f"{shown}: {error}") from None
            if not 1.0 <= found[key] <= MOST_BANDWIDTH:
                raise LoomError(f"{shown}: must be from 1 B/s to 1000 PB/s")
        elif kind is bool:
            if text.strip().lower() not in ("true", "false"):
                raise LoomError(f"{shown}: must be true or false")
            found[key] = text.strip().lower() == "true"
        else:
            if text not in kind:
                near = nearest_name(text, kind)
                raise LoomError(
                    f"{shown}: must be one of {', '.join(kind)}" + (f"; did you mean '{near}'?" if near else "")
                )
            found[key] = text
    refuse_host_keys(found)
    return found

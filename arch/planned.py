"""The answer of ``loom plan``: the best plan of a workload on a system, its step, what the next best ones lose by."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from siliconloom.arch.result import Asked, ExpertsResult, ResultSection

PLAN_SCHEMA = "siliconloom.plan/1"


class PlanMemory(ResultSection):
    """Bytes of the fullest chip."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    cache: float
    host: float = Field(default=0.0, description="in the host's memory (plan.offload), not on the chip")


class PlannedStepResult(ResultSection):
    """One plan, and what a step takes under it; `loom sim` has the same step, operator by operator."""

    plan: dict[str, Any] = Field(description="degrees of parallelism and how a step is run")
    plan_text: str
    step_s: float = Field(description="seconds of a step")
    tflops_per_chip: float = Field(description="model FLOP/s of a chip, in which scores that a mask saves count")
    computed_tflops_per_chip: float = Field(description="the same without these, as `utilization` counts")
    utilization: float = Field(description="of the time taken, the share that the arithmetic alone would need")
    tokens_per_second: float
    memory_bytes: float = Field(description="of the fullest chip, the sum of memory")
    memory: PlanMemory
    bubble: float = Field(description="share of the pipeline's time in which a chip waits for others")
    exposed_comm_s: float = Field(description="seconds for which the busiest chip waits for messages")
    gradient_s: float = Field(description="training: sums over replicas that nothing hides")
    optimizer_s: float
    host_s: float = Field(default=0.0, description="of the step, what waits for the host (plan.offload)")
    microbatches: int = Field(description="parts of a replica's batch")
    stage_layers: list[int] = Field(description="layers of every stage")
    experts: ExpertsResult | None = Field(default=None, description="with a trace of where tokens go")


class Alternative(PlannedStepResult):
    """A plan that is slower than the best one."""

    slower_by: float
    lost_by: str = Field(description="the part of the step that grew most")


class Searched(ResultSection):
    """How many plans were looked at."""

    simulated: int
    pruned: int = Field(description="shown slower by their lower bound")
    too_large: int
    wall_s: float


class Delayed(ResultSection):
    """The same step with a stage or a link that falls behind (``slow.``)."""

    step_s: float
    slower_by: float


class Decoded(PlannedStepResult):
    """The tokens after the prompts under a plan of their own (``decode.``)."""

    lower_bound_s: float
    cache_bytes: float
    moved_bytes: float
    kv_transfer_s: float = Field(description="seconds until keys and values are where the tokens' plan has them")


class Quantiles(ResultSection):
    """Of several runs."""

    mean: float
    p10: float
    p90: float


class FaultyRun(ResultSection):
    """A whole training run on chips that fail (``run.``); figures without another word are means over its seeds."""

    steps: int
    chips: int
    mtbf_s: float | None
    checkpoint_s: float
    checkpoint_steps: int
    ideal_s: float = Field(description="the steps alone")
    expected_s: float | None = Field(description="by Daly's formula; null with few spares, which it does not know")
    seconds: Quantiles
    failures: float
    checkpoints: float
    goodput: float
    useful_s: float
    checkpoints_s: float
    lost_s: float
    restart_s: float
    waiting_s: float


class PlanResult(PlannedStepResult):
    """What `loom plan` writes."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title=PLAN_SCHEMA)

    schema_: Literal["siliconloom.plan/1"] = Field(alias="schema")
    version: str
    system: str
    workload: str
    batch: int
    phase: str
    asked: Asked
    sequence: int = Field(description="keys that a sequence's tokens attend to")
    parameters: int
    flops: float = Field(description="model FLOPs of a step")
    lower_bound_s: float = Field(description="seconds of the arithmetic with all chips at their peak")
    placement: list[int] | None = Field(description="chip of every rank, where it matters and is not their order")
    unplaced_step_s: float = Field(description="the step with the ranks in the order of the chips")
    notes: list[str]
    search: Searched
    alternatives: list[Alternative]
    slow: Delayed | None = None
    decode: Decoded | None = None
    run: FaultyRun | None = None

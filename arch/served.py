"""The answer of ``loom serve``: what requests waited for, what they cost, and what the machine did meanwhile."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from siliconloom.arch.result import ResultSection

SERVING_SCHEMA = "siliconloom.serving/1"


class Spread(ResultSection):
    """Of all requests (of intervals: of all tokens but first ones)."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class ServingAsked(ResultSection):
    """Everything that was asked."""

    machine: str
    machine_digest: str
    workload: str
    workload_digest: str = Field(description="SHA-256 of the operators of one next token")
    trace: str
    trace_digest: str = Field(description="SHA-256 of the requests that were served, with their times")
    plan: dict[str, Any] = Field(description="of one replica")
    settings: dict[str, Any] = Field(description="all keys of serve., those with their defaults, too")
    stack: str = Field(description="software of the host, whose share of a step is added")
    profile: str | None = Field(default=None, description="measured operators that took the place of predicted ones")
    overrides: dict[str, str]


class ServedTraffic(ResultSection):
    """The requests that came."""

    count: int
    finished: int
    prompt_tokens: int
    output_tokens: int
    span_s: float = Field(description="from the first arrival to the last")
    rate: float | None = Field(description="requests a second in that time; none where all come at once")


class ServedObjective(ResultSection):
    """Limits that requests should keep to, and how many do."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    attained: float = Field(description="share of the requests that keep to all of them")


class ServingMemory(ResultSection):
    """Memory of one replica, all of its chips."""

    capacity_bytes: float
    usable_bytes: float = Field(description="the share that serve.memory_share leaves")
    weight_bytes: float = Field(description="of all models that lie there at once")
    tuning_bytes: float = Field(default=0.0, description="of training: kept results, and the adapter's states")
    hosted_bytes: float = Field(
        default=0.0, description="of experts that lie in the host's memory (serve.expert_slots)"
    )
    models: int = Field(default=1, description="that lie there at once (serve.model_slots)")
    activation_bytes: float = Field(description="operands and results of the largest operator of the largest step")
    kv_bytes_per_token: float
    adapter_bytes: float = Field(description="of one LoRA adapter; nothing where there are none")
    block_tokens: int
    blocks: int
    cache_tokens: int = Field(description="room for keys and values, in tokens")


class ServingCost(ResultSection):
    """Money, where chips have a price (serve.price)."""

    chip_hours: float
    chips_usd: float | None = Field(description="chip hours times their price; none where there is none")
    electricity_usd: float | None = Field(description="none where energy is not known")
    usd: float | None = Field(description="both; chips alone where energy is not known")
    usd_per_million_tokens: float | None = Field(description="of output tokens")


class DraftResult(ResultSection):
    """The model that guesses for a replica (serve.draft)."""

    model: str
    machine: str | None = Field(description="a machine of its own (serve.draft_on); none where it is on the replica's")
    chips: int = Field(description="that it is divided over")
    ahead: bool = Field(default=False, description="it guesses on while guesses are checked (serve.draft_ahead)")


class ReplicaGroupResult(ResultSection):
    """Replicas that are alike."""

    machine: str
    role: Literal["whole", "prompts", "answers"]
    replicas: int
    chips: int = Field(description="of one")
    plan: dict[str, Any]
    stack: str
    price: float | None = Field(description="dollars an hour of a chip")
    draft: DraftResult | None = None
    memory: ServingMemory


class ReplicaResult(ResultSection):
    """One replica."""

    kind: Literal["whole", "prompts", "answers"]
    requests: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    busy: float = Field(description="share of the time in which it worked")
    batch: float = Field(description="requests that get a next token, mean over its steps")
    adapter_loads: int = Field(description="times that an adapter was brought from the host")
    model_loads: int = Field(default=0, description="times that another model was brought (serve.model_slots)")
    cache_used: float = Field(description="most of its blocks in use, as a share")


class TuningResult(ResultSection):
    """What was trained beside the requests (serve.tune_sequence), until the last of them had ended."""

    tokens: int = Field(description="that have gone forward and back")
    sequences: int
    tokens_per_s: float


class HostedExpertsResult(ResultSection):
    """Experts that came from the host (serve.expert_slots), of all replicas."""

    used: int = Field(description="experts that steps used, of each layer by itself")
    loads: int = Field(description="those of them that were brought")
    load_s: float = Field(description="seconds to bring one")
    waited_s: float = Field(description="seconds that steps took longer for it, of all replicas together")


class ScalingResult(ResultSection):
    """Replicas that come and go (serve.replicas_least, serve.lost_every)."""

    replica_s: float = Field(description="seconds that replicas were paid for, all together, those of starts too")
    mean: float = Field(description="replicas that could work, mean over the run")
    started: int = Field(description="times that one was started for more work")
    lost: int = Field(description="replicas that were lost")
    remade: int = Field(description="times that a request was on a replica which was lost")


class MigrationResult(ResultSection):
    """Requests that moved between replicas as they ran (serve.migrate_below)."""

    moved: int
    given_up: int = Field(description="moves that ended with nothing: the request had ended, or there was no room")
    copied_tokens: int = Field(description="tokens whose keys and values were copied, those of given up moves too")
    apart_s: float = Field(description="seconds between two replicas, in which a request stood, mean over moves")


class PowerResult(ResultSection):
    """Power of all chips under a limit (serve.power_limit), mean from look to look."""

    limit_w: float
    peak_w: float = Field(description="the most that a look saw")
    over: float = Field(description="share of the time for which looks saw more than the limit")
    capped_s: float = Field(description="seconds in which clocks were lowered")
    least_clock: float = Field(description="the lowest share of their clock that chips had")


class SpillResult(ResultSection):
    """A slower memory for prefixes (serve.spill)."""

    name: str
    brought_tokens: int = Field(description="tokens whose keys and values came from there")


class CostsResult(ResultSection):
    """Where the times of steps come from."""

    asked: int = Field(description="answers of the evaluator that this run needed anew")
    audited: int = Field(
        description="steps of the run that were asked in full afterwards, each request with its length"
    )
    audit_mean: float | None = Field(description="mean relative difference of such a step, without the host's share")
    audit_max: float | None


class FoundResult(ResultSection):
    """What a search for capacity tried."""

    what: Literal["rate", "replicas", "fleet"]
    value: float = Field(description="requests a second, replicas, or dollars for an hour of a fleet's machines")
    machines: list[int] | None = Field(default=None, description="of a fleet: how many of each group, in order")
    attain: float = Field(description="share of the requests that must keep to the limits")
    tried: list[dict[str, float]]


class ServingResult(ResultSection):
    """A served trace."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title="siliconloom serving")

    schema_: str = Field(alias="schema")
    kind: Literal["serving"]
    version: str
    complete: bool = Field(description="false where the run was interrupted; figures are of what had ended by then")
    asked: ServingAsked
    chips: int = Field(description="of all replicas")
    requests: ServedTraffic
    duration_s: float = Field(description="from the first arrival to the last token")
    ttft_s: Spread = Field(description="from a request's arrival to its first token")
    tpot_s: Spread = Field(description="of a request with several tokens, time from the first to the last, for each")
    itl_s: Spread = Field(description="between a token and the next of the same request, to a quarter of a percent")
    e2e_s: Spread = Field(description="from a request's arrival to its last token")
    queue_s: Spread = Field(description="from a request's arrival until it is first worked on")
    slo: ServedObjective
    goodput: float = Field(description="requests a second that keep to the limits; all of them where there are none")
    requests_per_s: float
    tokens_per_s: float = Field(description="output tokens")
    prompt_tokens_per_s: float
    energy_j: float | None = Field(description="of all chips, while they wait, too; none of measured operators")
    power_w: float | None
    joules_per_token: float | None = Field(description="of output tokens")
    cost: ServingCost
    busy: float = Field(description="share of the time in which replicas worked, mean")
    batch: float = Field(description="requests that get a next token, mean over steps")
    preempted: int = Field(description="times that a request was sent back to the queue")
    accepted: float | None = Field(
        default=None, description="share of guessed tokens that were right (serve.speculate)"
    )
    ready: float | None = Field(
        default=None, description="share of checks whose guesses were made during the check before (serve.draft_ahead)"
    )
    scaling: ScalingResult | None = None
    migration: MigrationResult | None = None
    power: PowerResult | None = None
    spill: list[SpillResult] | None = None
    tuning: TuningResult | None = None
    experts: HostedExpertsResult | None = None
    cached_share: float = Field(description="of prompts' tokens, those that lay in the cache already")
    memory: ServingMemory = Field(description="of the first group")
    groups: list[ReplicaGroupResult]
    replicas: list[ReplicaResult]
    costs: CostsResult
    found: FoundResult | None = None
    timeline: dict[str, list[float]] = Field(
        description="over the run in equal spans: start_s, prompt and output tokens_per_s, running, waiting, "
        "cache_used, and replicas where they come and go"
    )
    simulator: dict[str, float]
    notes: list[str]


__all__ = ["SERVING_SCHEMA", "ServingResult", "Spread"]

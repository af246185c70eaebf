"""The result of one step of a workload on a machine: one schema, whatever the machine is.

What every result has stands in `StepResult`; what only some machines have is optional there, and says which. A key is
never renamed and never changes its unit within a version of the schema.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from siliconloom.arch.document import Description
from siliconloom.arch.schemas import RESULT_SCHEMA

SCHEMA = RESULT_SCHEMA
Kind = Literal["chip", "gpus", "system", "pim_tile"]


class ResultSection(BaseModel):
    """A part of a result: it has these keys and no others, and they do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Asked(ResultSection):
    """Everything that was asked, so that the same can be asked again."""

    machine: str = Field(description="name of the chip, GPU or system")
    machine_digest: str = Field(description="SHA-256 of its description and of its chips', overrides included")
    workload: str
    workload_digest: str = Field(description="SHA-256 of its operators and what they pass on")
    phase: str
    precision: str
    batch: int
    sequence: int | None = Field(description="new tokens of each sequence; none of products and of unequal requests")
    context: int | None = Field(description="keys that the last of them attends to; none of products")
    requests: list[dict[str, int]] | None = Field(
        default=None, description="new tokens, earlier ones and how many, of requests of unequal lengths"
    )
    plan: dict[str, Any] | None = Field(description="degrees of parallelism and how a step is run; none of one chip")
    mapping: str | None = Field(
        default=None, description="SHA-256 of the mapping that was given (--mapping); none where the mapper decides"
    )
    overrides: dict[str, str] = Field(description="key paths and values of --set")


class LowerBound(ResultSection):
    """What no mapping of the workload can be faster than."""

    lower_bound_s: float
    lower_bound_cycles: int
    name: str = Field(description="what binds: compute, memory, vector, decompression, bank, activation, roofline")
    achieved: float = Field(description="of the time taken, the share that the bound explains")
    key: str | None = Field(default=None, description="key path of what binds")
    compute_cycles: int | None = None
    memory_cycles: int | None = None
    vector_cycles: int | None = None
    decompression_cycles: int | None = Field(default=None, description="of compressed weights, where there are any")
    bank_cycles: int | None = None
    activation_cycles: int | None = None
    level_cycles: dict[str, int] | None = None


class HardwareResult(ResultSection):
    """Whether the generated Verilog runs what was timed."""

    word: Literal["proven", "specified"] = Field(
        description="proven: every operator's instructions run on the generated Verilog as they were timed; specified: "
        "some are timed by the units' specification, and would be refused by the assembler"
    )
    proven: int = Field(description="operators whose instructions the assembler takes")
    operators: int
    why: dict[str, int] = Field(description="why the others are not proven, and of how many operators that holds")


class OperatorResult(ResultSection):
    """All executions of one operator on one chip in a step, or of one kernel of it on a GPU."""

    name: str
    kind: str = Field(description="gemm, attention, vector; of a GPU the kernel's: gemm, rmsnorm, all_reduce, ...")
    repeat: int
    seconds: float = Field(description="from its first instruction to its last, of all executions; overlaps count")
    macs: int
    shape: dict[str, Any]
    block: str | None = None
    unit: str | None = Field(default=None, description="npu or pim, where memory computes")
    tiles: int | None = None
    hardware: Literal["proven", "specified"] | None = Field(default=None, description="see the result's hardware")
    hardware_why: str | None = Field(default=None, description="why it is not proven")
    start_cycle: int | None = None
    end_cycle: int | None = None
    cycles: int | None = None
    overlap_cycles: int | None = Field(default=None, description="of its cycles, those in which others were at work")
    utilization: float | None = None
    bound: str | None = Field(default=None, description="what binds it")
    bound_cycles: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    energy_j: float | None = Field(default=None, description="of a GPU's kernel on all GPUs, idle time left out")
    energy: dict[str, float] | None = None
    busy_cycles: dict[str, int] | None = None
    fused: list[str] | bool | None = Field(default=None, description="operators done on its results; on a GPU, whether")
    error: float | None = Field(
        default=None, description="holds half of measurements left out: they take 1/(1 + it) to 1 + it times as long"
    )
    error_90: float | None = Field(default=None, description="the bar that holds 90 % of them")
    nearby: bool | None = Field(
        default=None, description="of a GPU's kernel, whether one like it was measured on that GPU at sizes near by"
    )
    roofline_s: float | None = Field(default=None, description="of a GPU's kernel, seconds that no GPU can be under")
    measured_s: float | None = Field(
        default=None, description="of a GPU's kernel that somebody measured at this very size, the measured seconds"
    )
    measured_error: float | None = Field(default=None, description="how far those who measured it lie apart, relative")
    measured_in: list[str] | None = Field(default=None, description="tables that have it")


class UnitResult(ResultSection):
    """What a unit of the tile did in all cycles."""

    busy_cycles: int
    utilization: float
    stall_cycles: dict[str, int] | None = None
    mac_utilization: float | None = None
    commands: dict[str, int] | None = None
    channel_imbalance: float | None = None


class LevelResult(ResultSection):
    """A memory level: what lies there and what moved."""

    used_bytes: int
    capacity_bytes: int
    bandwidth: int
    moved_bytes: int
    bound_cycles: int
    utilization: float
    energy_j: float
    dram: str | None = None
    pin_bandwidth: int | None = None
    latency_s: float | None = None


class AreaResult(ResultSection):
    """Silicon of one of our chips, as `arch.area` counts it: good to a factor of two."""

    mm2: float = Field(description="of all parts")
    parts: dict[str, float]
    technology: str
    excludes: list[str] = Field(description="what no part counts")


class TriedPlacement(ResultSection):
    """A placement that was looked at."""

    cost_cycles: float = Field(description="that all transfers take, one after the other")
    cycles: int | None = Field(description="of its program on the simulator, where it was mapped")


class PlacedResult(ResultSection):
    """Who decided which of several memory levels holds what."""

    by: str = Field(description="heuristic, exact, or mapping: the file that was given")
    tried: dict[str, TriedPlacement]
    bound_cycles: float | None = Field(description="that no placement costs less than, from constraint programming")
    proven: bool = Field(description="the exact placement is the best of all, but for rounding")
    gap: float | None = Field(description="by what part of the bound the taken placement costs more")


class MemoryResult(ResultSection):
    """Bytes of one chip's memory that are used, of those it has."""

    used_bytes: int
    capacity_bytes: int
    levels: dict[str, LevelResult] | None = None
    placed: PlacedResult | None = Field(default=None, description="on a chip with several memory levels")


class SystemResult(ResultSection):
    """How a step is laid over the chips of a system."""

    name: str
    chips: int
    tensor: int
    pipeline: int
    passes: int
    layers_per_stage: int | None = None
    interleaved: bool | None = None
    attention: dict[str, Any] | None = None


class ExpertsResult(ResultSection):
    """Where the experts of a plan lie, and how much more than the mean the fullest chip has to do."""

    routing: str = Field(description="file that says where tokens go")
    routing_digest: str = Field(description="SHA-256 of that file")
    tokens: int = Field(description="that it has")
    placement: str = Field(description="balanced, or in_order")
    load: float = Field(
        description="rows of the fullest chip over the mean, the mean of all layers; the plan's expert_load"
    )
    in_order_load: float = Field(description="the same with consecutive experts on a chip")
    layer_loads: list[float] = Field(description="of each layer that has experts")
    chips: list[list[list[int]]] | None = Field(default=None, description="of each such layer and chip, its experts")


class WindowResult(ResultSection):
    """A stretch in which arrays and memory work side by side, and how often it comes."""

    name: str
    repeat: int
    cycles: int
    array_cycles: int
    memory_cycles: int


class SimulatorResult(ResultSection):
    """What the simulator itself took."""

    wall_s: float
    map_s: float | None = None
    events: int | None = None
    events_skipped: int | None = None
    periods: int | None = None
    lookups: int | None = None
    instructions: int | None = None


class StepResult(ResultSection):
    """One step of a workload on a machine."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title=SCHEMA)

    schema_: Literal["siliconloom.result/2"] = Field(alias="schema")
    kind: Kind = Field(description="what the machine is: one of our chips, GPUs, a system of our chips, a PIM tile")
    version: str
    asked: Asked
    chip: str
    chip_digest: str | None = None
    workload: str
    phase: str
    precision: str
    batch: int
    tokens: int
    seconds: float
    cycles: int
    clock_hz: int
    macs: int = Field(description="of the step; of a system of our chips one tensor rank's")
    utilization: float = Field(
        description="multiply-accumulates of the arrays over those at their peak; memory's are in units.pim"
    )
    tokens_per_second: float
    images_per_second: float | None = Field(default=None, description="of a workload that takes images")
    energy_j: float = Field(description="of a system all its chips', those without work included")
    energy: dict[str, float] = Field(
        description="by component; idle_chips: standing power of a system's chips that the plan leaves without work"
    )
    energy_excludes: list[str]
    power_w: float
    bound: LowerBound
    operators: list[OperatorResult]
    memory: MemoryResult
    simulator: SimulatorResult
    notes: list[str]
    error: float | None = Field(
        default=None, description="holds half of measured runs left out: they take 1/(1 + it) to 1 + it times as long"
    )
    error_90: float | None = Field(default=None, description="the bar that holds 90 % of them")
    measured_share: float | None = Field(
        default=None, description="of a GPU's kernels, the share of time of those that were measured near by"
    )
    measured_s: float | None = Field(
        default=None,
        description="on GPUs whose kernels run one after the other: seconds with measured kernels' times in place of "
        "the predicted ones",
    )
    measured_error: float | None = Field(default=None, description="relative error of measured_s")
    overhead_s: float | None = Field(default=None, description="of seconds, what serving software adds to kernels")
    hardware: HardwareResult | None = Field(default=None, description="of a chip's program")
    peak_macs: int | None = Field(default=None, description="multiply-accumulates per cycle of the chip")
    macs_executed: int | None = None
    units: dict[str, UnitResult] | None = None
    traffic_bytes: dict[str, int] | None = None
    traffic: dict[str, dict[str, int]] | None = None
    area: AreaResult | None = Field(default=None, description="of one of our chips")
    system: SystemResult | None = None
    plan_text: str | None = None
    windows: list[WindowResult] | None = None
    experts: ExpertsResult | None = Field(default=None, description="with a trace of where tokens go")


def digest_of(descriptions: Sequence[Description]) -> str:
    """SHA-256 of the canonical text of descriptions, in order; of one chip its own `Chip.digest`."""
    parts = [json.dumps(d.model_dump(mode="json"), sort_keys=True, separators=(",", ":")) for d in descriptions]
    return hashlib.sha256("".join(parts).encode()).hexdigest()

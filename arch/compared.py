"""The answer of ``loom compare``: one workload on several machines side by side, operator by operator.

The first machine is ours, the one that was asked for; the others are GPUs. Totals of a machine are those of its own
result (`arch.result`). A comparison cannot contradict itself: ratios are checked against the machines' figures. A key
is never renamed and never changes its unit within a version of the schema.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from siliconloom.arch.result import Asked, ResultSection

COMPARE_SCHEMA = "siliconloom.compare/2"
AGREE = 1e-9
"""Relative; ratios are written as they were computed."""


class AskedGpu(ResultSection):
    """A GPU to compare with."""

    name: str
    machine_digest: str = Field(description="SHA-256 of its description")


class AskedComparison(Asked):
    """Everything that was asked, so that the same can be asked again; the machine is the first one."""

    gpus: list[AskedGpu] = Field(min_length=1)
    tensor: int = Field(description="of each GPU, how many share every operator")
    sustained: bool = Field(description="GPUs under the board's power limit, as in a run of seconds")
    stack: str = Field(description="serving software on the GPUs")
    prices: dict[str, float] = Field(description="dollars an hour by name of the machine")


class ComparedMachine(ResultSection):
    """Totals of a step on one machine, and beside those of the first."""

    name: str
    kind: Literal["chip", "system", "gpu"]
    count: int = Field(description="machines of that name")
    chips: int = Field(description="chips, or GPUs, that the step runs on")
    seconds: float = Field(description="as the machine's own result has them")
    error: float = Field(
        description="bar that holds half of measured runs: they take 1/(1 + it) to 1 + it times as long; "
        "0 where cycles are simulated"
    )
    error_90: float = Field(default=0.0, description="the bar that holds 90 % of them")
    measured_share: float | None = Field(
        default=None, description="of a GPU's kernels, the share of time of those that were measured near by"
    )
    measured_s: float | None = Field(
        description="seconds with the times of kernels that somebody measured at this very size in place of the "
        "predicted ones; none where nobody did"
    )
    measured_error: float | None = Field(description="relative error of measured_s")
    overhead_s: float = Field(description="of seconds, what serving software adds to the kernels")
    energy_of: Literal["boards", "chips"] = Field(description="what the energy is that of")
    energy_j: float
    energy_excludes: list[str]
    power_w: float
    tokens_per_second: float
    utilization: float
    roofline_s: float = Field(description="lower bound of seconds")
    achieved: float = Field(description="of seconds, the share that the lower bound explains")
    dollars_per_hour: float | None
    dollars_per_million_tokens: float | None
    speedup: float | None = Field(default=None, description="of the first machine over this one; none of the first")
    speedup_range: tuple[float, float] | None = Field(default=None, description="with the error either way")
    energy_ratio: float | None = Field(default=None, description="of this machine over the first; none of the first")


class ComparedKernel(ResultSection):
    """A kernel of a GPU, all its executions."""

    name: str
    kind: str = Field(description="gemm, rmsnorm, all_reduce, ...")
    repeat: int
    seconds: float
    error: float
    error_90: float = 0.0
    nearby: bool | None = Field(default=None, description="whether one like it was measured at sizes near by")
    bound: str
    fused: bool = Field(description="whether another kernel takes it along")
    measured_s: float | None = None
    measured_error: float | None = None
    measured_in: list[str] | None = Field(default=None, description="tables that have it")


class ComparedOperator(ResultSection):
    """All executions of an operator on one machine; on a GPU with what the first machine does within it."""

    seconds: float
    error: float
    error_90: float = 0.0
    source: Literal["simulated", "modelled"] = Field(description="how seconds were found")
    measured_s: float | None = Field(
        description="seconds with the times of its measured kernels in place of the predicted ones; none where no "
        "kernel was measured at this very size"
    )
    measured_error: float | None
    measured: Literal["all", "some", "none"] = Field(description="which of its kernels were measured")
    energy_j: float | None = Field(description="idle time left out; none where it is not known by operator")
    flops: float
    roofline_s: float | None
    achieved: float | None = Field(description="of seconds, the share that the roofline explains")
    bound: str | None = Field(description="what binds it, or its longest kernel")
    kernels: list[ComparedKernel] | None = Field(default=None, description="of a GPU")


class ComparedRow(ResultSection):
    """An operator of the first machine, and the same on every machine."""

    name: str
    machines: dict[str, ComparedOperator | None] = Field(
        description="by name of the machine; none where it has no such operator"
    )


class Comparison(ResultSection):
    """What `loom compare` writes."""

    model_config = ConfigDict(extra="forbid", defer_build=True, title=COMPARE_SCHEMA)

    schema_: Literal["siliconloom.compare/2"] = Field(alias="schema")
    version: str
    asked: AskedComparison
    workload: str
    phase: str
    precision: str
    batch: int
    tokens: int
    notes: list[str]
    machines: list[ComparedMachine] = Field(min_length=2, description="the first is ours")
    operators: list[ComparedRow]

    @model_validator(mode="after")
    def _agrees(self) -> Comparison:
        first, *others = self.machines
        names = [machine.name for machine in self.machines]
        if names != [self.asked.machine, *(gpu.name for gpu in self.asked.gpus)]:
            raise ValueError("machines must be those that were asked for, in their order")
        if len(set(names)) < len(names):
            raise ValueError("machines must have different names")
        if any(list(row.machines) != names for row in self.operators):
            raise ValueError("an operator must name every machine, in their order")
        if any(row.machines[first.name] is None for row in self.operators):
            raise ValueError("operators must be the first machine's")
        for machine in others:
            if machine.speedup is None or not math.isclose(
                machine.speedup * first.seconds, machine.seconds, rel_tol=AGREE
            ):
                raise ValueError(f"speedup must be {machine.name}'s seconds over {first.name}'s")
        return self

"""A GPU as its datasheet and micro-benchmarks describe it: multiprocessors, rates, memory, links, power.

Rates are given per multiprocessor and cycle, so that they follow the clock; `peak_flops` multiplies them out to the
datasheet's figure. How well kernels use them is not part of a description: `siliconloom.baselines.efficiency`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from siliconloom.arch.document import MAX_SHOWN, Description, Document, Name, find_document, rule_at
from siliconloom.arch.errors import DescriptionError, LoomError, Position, shortened
from siliconloom.arch.names import LIBRARY, gpu_names
from siliconloom.arch.quantity import Bandwidth, Bytes, Duration, Frequency, format_si

Precision = Literal["fp64", "tf32", "fp32", "fp16", "bf16", "fp8", "int8", "fp4", "int4"]
Architecture = Literal[
    "volta", "ampere", "ampere-ga10x", "ada", "hopper", "blackwell", "blackwell-gb20x", "cdna2", "cdna3"
]


class GpuMemory(Description):
    """Device memory."""

    kind: Literal["hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr6x", "gddr7"]
    capacity: Bytes
    bandwidth: Bandwidth
    latency_cycles: int | None = Field(default=None, ge=1, le=10_000, description="pointer chase, cycles of the clock")


class GpuCache(Description):
    """The cache that all multiprocessors share."""

    capacity: Bytes
    latency_cycles: int | None = Field(default=None, ge=1, le=10_000, description="pointer chase, near partition")
    far_latency_cycles: int | None = Field(
        default=None, ge=1, le=10_000, description="pointer chase, the other partition"
    )


class GpuFirstLevel(Description):
    """Cache and shared memory of one multiprocessor."""

    capacity: Bytes
    latency_cycles: int | None = Field(default=None, ge=1, le=10_000)
    shared_latency_cycles: int | None = Field(default=None, ge=1, le=10_000)
    remote_latency_cycles: int | None = Field(
        default=None, ge=1, le=10_000, description="another multiprocessor's shared memory (clusters)"
    )


class GpuLink(Description):
    """How the GPUs of a node are joined, and the nodes with each other."""

    kind: Literal["nvlink", "pcie", "infinity_fabric"]
    bandwidth: Bandwidth = Field(description="of a GPU, per direction")
    per_node: int = Field(default=8, ge=1, le=1024, description="GPUs of a node")
    switched: bool = Field(default=False, description="every GPU reaches every other at full rate (NVSwitch)")
    in_switch: bool = Field(default=False, description="the switch adds (NVLS)")
    network: Bandwidth = Field(default=25 * 10**9, description="between nodes, of a GPU, per direction")
    network_latency: Duration = Field(default=5_000_000, description="between nodes, of a message")


LEAST_CLOCK = 0.2
"""Share of the clock down to which a GPU is held."""


class Gpu(Description):
    """One GPU."""

    kind: Literal["gpu"]
    name: Name
    product: str = Field(min_length=1)
    source: str = Field(min_length=1, description="datasheet, whitepaper, micro-benchmarks")
    architecture: Architecture
    multiprocessors: int = Field(ge=1, le=4096)
    clock: Frequency = Field(description="highest boost clock, at which the datasheet's rates hold")
    matrix: dict[Precision, int] = Field(
        min_length=1, description="dense floating-point operations per cycle of a multiprocessor's matrix units"
    )
    vector: dict[Precision, int] = Field(min_length=1, description="the same of its vector units")
    integer: int | None = Field(
        default=None, ge=1, le=4096, description="32-bit logic and shift instructions per cycle of a multiprocessor"
    )
    sparse: int | None = Field(
        default=None, ge=1, le=2, description="times the dense rate of matrix units with 2:4 sparse weights"
    )
    exponentials: int = Field(ge=1, le=1024, description="special functions per cycle of a multiprocessor")
    first_level: GpuFirstLevel
    l2: GpuCache
    memory: GpuMemory
    link: GpuLink
    power: float = Field(gt=0, le=10_000, description="board limit in watts")
    idle_power: float = Field(ge=0, le=10_000, description="watts at work on nothing, clocks up")
    power_cap: float | None = Field(
        default=None, gt=0, le=10_000, description="watts that the driver holds the board to (nvidia-smi -pl)"
    )
    locked_clock: Frequency | None = Field(
        default=None, description="clock that the driver holds multiprocessors to (nvidia-smi -lgc)"
    )

    @model_validator(mode="after")
    def _check(self) -> Gpu:
        if self.idle_power >= self.power:
            raise ValueError(f"idle_power must be below power, {self.power:g} W (got {self.idle_power:g})")
        if self.power_cap is not None and not self.idle_power < self.power_cap < self.power:
            rule = f"must be between idle_power, {self.idle_power:g} W, and power, {self.power:g} W"
            raise rule_at("power_cap", rule, self.power_cap)
        if self.locked_clock is not None and not LEAST_CLOCK * self.clock <= self.locked_clock < self.clock:
            least, most = format_si(LEAST_CLOCK * self.clock, "Hz"), format_si(self.clock, "Hz")
            raise rule_at("locked_clock", f"must be from {least}, a fifth of clock, to below clock, {most}", None)
        for name, table in (("matrix", self.matrix), ("vector", self.vector)):
            for precision, rate in table.items():
                if rate < 1:
                    raise ValueError(f"{name}.{precision} must be at least 1 (got {rate})")
        return self

    @property
    def rates(self) -> dict[str, int]:
        """Operations per cycle of one multiprocessor, by precision, of the fastest units for each."""
        return {str(p): rate for table in (self.vector, self.matrix) for p, rate in table.items()}

    def rate(self, precision: str) -> int:
        """Operations per cycle of one multiprocessor in ``precision``, of its fastest units.

        Raises
        ------
        LoomError
            When the GPU has no units for it.
        """
        rates = self.rates
        if precision not in rates:
            raise LoomError(f"{self.name}: no units for {precision}; it has {', '.join(sorted(rates))}")
        return rates[precision]

    def peak_flops(self, precision: str) -> float:
        """Floating-point operations per second at the boost clock; 0 without units for ``precision``."""
        return float(self.rates.get(precision, 0) * self.multiprocessors * self.clock)

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second of the device memory."""
        return float(self.memory.bandwidth)

    @property
    def l2_bytes(self) -> float:
        """Bytes that the shared cache holds."""
        return float(self.l2.capacity)

    @property
    def link_bandwidth(self) -> float:
        """Bytes per second of a GPU's links, per direction."""
        return float(self.link.bandwidth)


RECORDED = frozenset(
    {
        "memory.kind",
        "memory.latency_cycles",
        "l2.latency_cycles",
        "l2.far_latency_cycles",
        "first_level.capacity",
        "first_level.latency_cycles",
        "first_level.shared_latency_cycles",
        "first_level.remote_latency_cycles",
        "link.kind",
        "link.switched",
    }
)
"""Facts of a description that no prediction uses: what a GPU is shows them, and they explain what was fitted."""


def refuse_idle(overrides: list[tuple[str, str]], idle: Mapping[str, str] | None = None, prefix: str = "") -> None:
    """Refuse overrides of keys that a prediction does not use.

    Parameters
    ----------
    overrides
        Key paths in a GPU's description, and values.
    idle
        Keys that here mean nothing beside those of `RECORDED`, or all below one (``link.``), with the reason.
    prefix
        What stood before the paths on the command line.
    """
    reasons = {**dict.fromkeys(sorted(RECORDED), "no prediction uses it; loom gpu NAME shows it"), **(idle or {})}
    for path, value in overrides:
        reason = next((why for key, why in reasons.items() if path == key or f"{path}.".startswith(f"{key}.")), None)
        if reason is not None:
            position = Position(f"--set {shortened(f'{prefix}{path}={value}', MAX_SHOWN)}")
            raise DescriptionError(f"changes nothing: {reason}", position=position, path=f"{prefix}{path}")


def load_gpu(name: str | Document, overrides: list[tuple[str, str]] | None = None) -> Gpu:
    """Read a GPU from a file or the library; library names are taken in any case (``H100``)."""
    known = {n.lower(): n for n in gpu_names()}
    if isinstance(name, str):
        name = known.get(name.lower(), name)
    document = find_document(name, LIBRARY / "gpu", "GPU")
    document.override(overrides or [])
    document.expect_kind(["gpu"])
    return document.validate(Gpu)

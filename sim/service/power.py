"""A limit to what the chips of a service draw together, kept by lowering clocks (POLCA, Patel et al., ASPLOS 2024).

Every ``serve.power_every`` seconds, and at the end, the mean power of the time since the last look is taken. Where it
is above ``serve.power_limit`` all replicas go on at a lower clock of those that ``serve.capped_clock`` has, from their
next step on; where it would be below the limit with the next higher clock, they have that. What is drawn above standing
power is taken to go with the square of the clock, as energy of the same work does. The limit may be passed between two
looks, and a service says for how long it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.costs import StepCosts
from siliconloom.sim.service.replica import Replica

ROUNDING = 1e-9
"""Share of a limit by which sums of many steps may pass it."""


class PowerLook(Struct, frozen=True):
    """Mean watts from one time to another, that of the look, and the share of the clock from then on."""

    begin: float
    at: float
    watts: float
    clock: float


class PowerLimit(Struct):
    """Who looks at the power of all replicas.

    Parameters
    ----------
    engines
        Their schedulers.
    lowered
        What steps of each take at every lower clock, falling.
    standing
        Watts of each one's chips, whatever they do.
    apart
        Watts of chips that are in no replica.
    """

    settings: ServeSettings
    engines: Sequence[Replica]
    lowered: Sequence[Sequence[StepCosts]]
    standing: Sequence[float]
    apart: float = 0.0
    looks: list[PowerLook] = field(default_factory=list)
    level: int = 0
    """Which of the clocks: 0 is their own."""
    looked: float = 0.0
    """When somebody looked last."""

    def look(self, at: float, stood: Sequence[float]) -> None:
        """Choose a clock; ``stood`` are the seconds since the last look for which each replica was there."""
        begin, limit = self.looked, self.settings.power_limit
        assert limit is not None
        every = at - begin
        limit *= 1 + ROUNDING
        clocks = (1.0, *self.settings.clocks)
        drawn = sum(engine.account.drawn(begin, at) for engine in self.engines) / every
        standing = sum(watts * seconds for watts, seconds in zip(self.standing, stood, strict=True)) / every
        standing += self.apart
        now = clocks[self.level]

        def at_level(level: int) -> float:
            return standing + drawn * (clocks[level] / now) ** 2

        if standing + drawn > limit:
            lower = range(self.level + 1, len(clocks))
            self.level = next((level for level in lower if at_level(level) <= limit), len(clocks) - 1)
        elif self.level and at_level(self.level - 1) <= limit:
            self.level -= 1
        for engine, lowered in zip(self.engines, self.lowered, strict=True):
            engine.lowered = lowered[self.level - 1] if self.level else None
        self.looks.append(PowerLook(begin, at, standing + drawn, clocks[self.level]))
        self.looked = at

    def result(self, end: float) -> dict[str, float]:
        """What the looks up to a time saw, as `arch.served.PowerResult` has it."""
        looks = [each for each in self.looks if each.begin < end]
        limit, capped_s, over_s, whole_s = float(self.settings.power_limit or 0.0), 0.0, 0.0, 0.0
        for this, after in zip(looks, [*(each.at for each in looks[1:]), end], strict=True):
            capped_s += max(min(after, end) - this.at, 0.0) if this.clock < 1 else 0.0
            whole_s += this.at - this.begin
            over_s += (this.at - this.begin) * (this.watts > limit * (1 + ROUNDING))
        return {
            "limit_w": limit,
            "peak_w": max((each.watts for each in looks), default=0.0),
            "over": over_s / whole_s if whole_s else 0.0,
            "capped_s": capped_s,
            "least_clock": min((each.clock for each in looks if each.at < end), default=1.0),
        }


__all__ = ["PowerLimit", "PowerLook"]

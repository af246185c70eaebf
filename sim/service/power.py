"""A limit to what the chips of a service draw together, kept by lowering clocks (POLCA, Patel et al., ASPLOS 2024).

Every ``serve.power_every`` seconds the mean power of the time since the last look is taken. Where it is above
``serve.power_limit`` all replicas go on at a lower clock of those that ``serve.capped_clock`` has, from their next step
on; where it would be below the limit with the next higher clock, they have that. What is drawn above standing power is
taken to go with the square of the clock, as energy of the same work does. The limit may be passed between two looks,
and a service says how often it was.
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
    """Mean watts up to a time, since the look before, and the share of the clock from then on."""

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
    """

    settings: ServeSettings
    engines: Sequence[Replica]
    lowered: Sequence[Sequence[StepCosts]]
    standing: Sequence[float]
    looks: list[PowerLook] = field(default_factory=list)
    level: int = 0
    """Which of the clocks: 0 is their own."""

    def look(self, at: float, there: Sequence[int]) -> None:
        """Choose a clock; ``there`` are the replicas that stand."""
        every, limit = self.settings.power_every, self.settings.power_limit
        assert limit is not None
        limit *= 1 + ROUNDING
        clocks = (1.0, *self.settings.clocks)
        drawn = sum(engine.account.drawn(at - every, at) for engine in self.engines) / every
        standing = sum(self.standing[place] for place in there)
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
        self.looks.append(PowerLook(at, standing + drawn, clocks[self.level]))

    def result(self, end: float) -> dict[str, float]:
        """What the looks up to a time saw, as `arch.served.PowerResult` has it."""
        looks = [each for each in self.looks if each.at < end + self.settings.power_every]
        limit, capped_s = float(self.settings.power_limit or 0.0), 0.0
        for this, after in zip(looks, [*(each.at for each in looks[1:]), end], strict=False):
            capped_s += max(min(after, end) - this.at, 0.0) if this.clock < 1 else 0.0
        return {
            "limit_w": limit,
            "peak_w": max((each.watts for each in looks), default=0.0),
            "over": sum(each.watts > limit * (1 + ROUNDING) for each in looks) / len(looks) if looks else 0.0,
            "capped_s": capped_s,
            "least_clock": min((each.clock for each in looks), default=1.0),
        }


__all__ = ["PowerLimit", "PowerLook"]

"""What goes wrong with training, as descriptions: runs on chips that fail, stages and links that fall behind."""

from __future__ import annotations

from decimal import Decimal
from math import inf
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from siliconloom.arch.document import Description
from siliconloom.arch.quantity import Bandwidth, parse, quantity_schema

LONG = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "y": Decimal(365 * 86400),
}


class Long(float):
    """Seconds that were already read, so that a validated model can be validated again."""


def _seconds(text: object) -> Long:
    if text == "never":
        return Long(inf)
    if isinstance(text, Long):
        return text
    value = parse(text, LONG, "30 d")
    if value < 0:
        raise PydanticCustomError("quantity", "must not be negative", {})
    return Long(value)


Seconds = Annotated[float, BeforeValidator(_seconds), quantity_schema("30 d")]
"""Seconds, from durations of milliseconds to years, or ``never``."""


class DescribedRun(Description):
    """A training run on chips that fail (``run.*`` of ``loom plan``)."""

    steps: int = Field(ge=1, le=10**9)
    mtbf: Seconds = Field(default=Long(inf), gt=0, description="mean time between failures of one chip")
    checkpoint: Seconds | None = Field(default=None, description="stop of the training while one is written")
    storage: Bandwidth | None = Field(default=None, description="instead: rate at which all chips' states are written")
    checkpoint_steps: int | None = Field(default=None, ge=1, description="steps between them; Daly's best when absent")
    restart: Seconds = Field(default=Long(0), description="from a failure until training goes on")
    spares: int | None = Field(default=None, ge=0, description="chips that wait to step in; any number when absent")
    repair: Seconds = Field(default=Long(inf), description="until a failed chip is a spare one")
    seeds: int = Field(default=20, ge=1, le=10_000, description="runs that are simulated")


class Straggler(Description):
    """A pipeline's stage or link that falls behind during a step (``slow.*`` of ``loom plan``)."""

    stage: int | None = Field(default=None, ge=0, description="device of the pipeline")
    link: int | None = Field(default=None, ge=0, description="between stages k and k + 1; one of the two is given")
    factor: float = Field(ge=1, description="times as long as before")
    at: Seconds = Field(default=Long(0), description="of the step")

    @model_validator(mode="after")
    def _check(self) -> Straggler:
        if (self.stage is None) == (self.link is None):
            raise ValueError("give either stage or link")
        return self

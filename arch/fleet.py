"""Machines of several kinds that serve one model together: which of them, how many, what they do, what they cost.

``loom serve FLEET.yaml MODEL TRACE`` reads one (``kind: fleet``). A group is one machine, a GPU, a chip or a system, so
many times; ``plan`` says how its chips share the model, as ``--set plan.`` does for one machine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from siliconloom.arch.document import Description, Document, Name, rule_at
from siliconloom.arch.network import LinkPort

MOST_GROUPS = 64


class ReplicaRole(StrEnum):
    """What replicas do: whole requests, prompts only, or only the answers to prompts that others did."""

    WHOLE = "whole"
    PROMPTS = "prompts"
    ANSWERS = "answers"


class FleetGroup(Description):
    """Machines that are alike.

    Parameters
    ----------
    machine
        Library name or file of a GPU, a chip or a system.
    count
        How many of them; a system's chips may make several replicas (``plan.data``).
    role
        What their replicas do; prompts and answers go together.
    plan, overrides
        Keys as of ``--set plan.`` and of ``--set`` for the machine, with their values.
    price
        Dollars for an hour of one chip; ``serve.price`` where it is left out.
    """

    machine: str = Field(min_length=1, max_length=1000)
    count: Annotated[int, Field(ge=1, le=65536, strict=True)] = 1
    role: ReplicaRole = ReplicaRole.WHOLE
    plan: dict[str, str | int | float | bool] = Field(default_factory=dict)
    overrides: dict[str, str | int | float | bool] = Field(default_factory=dict)
    price: Annotated[float, Field(ge=0, le=1e6)] | None = None


class FleetDescription(Description):
    """A fleet; ``link`` is what keys and values cross from one replica to another."""

    kind: Literal["fleet"]
    name: Name
    description: str = ""
    groups: Annotated[tuple[FleetGroup, ...], Field(min_length=1, max_length=MOST_GROUPS)]
    link: LinkPort | None = None

    @model_validator(mode="after")
    def _prompts_and_answers(self) -> FleetDescription:
        roles = {group.role for group in self.groups}
        apart = {ReplicaRole.PROMPTS, ReplicaRole.ANSWERS}
        if roles & apart and roles != apart:
            raise rule_at("groups", "replicas for prompts need others for answers, and none that do whole requests")
        if roles & apart and self.link is None:
            raise rule_at("link", "is missing: keys and values cross it from prompts to answers")
        return self


def load_fleet(document: Document, overrides: list[tuple[str, str]]) -> FleetDescription:
    """A fleet with ``--set`` overrides; raises `LoomError`."""
    document.override(overrides)
    return document.validate(FleetDescription)


__all__ = ["FleetDescription", "FleetGroup", "ReplicaRole", "load_fleet"]

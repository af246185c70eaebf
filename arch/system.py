"""A system: chips, equal or not, joined by a topology of links, and how a model is laid over them."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace
from pydantic import Field, PrivateAttr, model_validator

from siliconloom.arch.description import Chip, load_chip
from siliconloom.arch.document import Description, Document, Name, find_document
from siliconloom.arch.errors import Position
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.names import LIBRARY
from siliconloom.arch.network import Algorithm, Endpoint, LinkPort, Topology, refuse_idle_topology
from siliconloom.arch.ring import RingEngine


class ChipGroup(Description):
    """A number of equal chips in a system."""

    chip: str = Field(min_length=1, description="library name or file of the chip")
    count: int = Field(ge=1, le=2**20)
    overrides: dict[str, str] = Field(default={}, description="changes to that chip, as for --set: path and value")
    _places: dict[str, Position] = PrivateAttr(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Where changes are written makes no other group."""
        return isinstance(other, ChipGroup) and self.__dict__ == other.__dict__

    @property
    def places(self) -> dict[str, Position]:
        """Where each of the changes is written, of a group that was read."""
        return self._places

    def placed(self, places: dict[str, Position]) -> ChipGroup:
        """The same group, whose changes are written there."""
        group = self.model_copy()
        group._places = places
        return group

    def changed(self, overrides: dict[str, str]) -> ChipGroup:
        """The group with more changes, or other ones, from the command line."""
        group = self.model_copy(update={"overrides": {**self.overrides, **overrides}})
        return group.placed({path: place for path, place in self._places.items() if path not in overrides})


class Policy(Description):
    """How a model is laid over a system's chips, and how its operators are scheduled on them."""

    tensor: int = Field(default=1, ge=1, le=4096, description="chips that share every operator")
    pipeline: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="stages of whole layers; the fewest in which the model fits when absent",
    )
    attention: Literal["auto", "npu", "pim"] = Field(default="auto", description="where decode's attention is computed")
    weights: Literal["auto", "npu", "pim"] = Field(default="auto", description="where decode's products are computed")
    balance: Literal["greedy", "round_robin"] = Field(
        default="greedy", description="sequences to memory channels: longest first to the least loaded, or in turn"
    )
    interleave: Literal["auto", "always", "never"] = Field(
        default="auto", description="two half batches, one on the arrays while the other one's attention is in memory"
    )
    values: Literal["packed", "row"] = Field(
        default="packed", description="several heads' values in a row while they are short, or one head's alone"
    )
    prefetch: bool = Field(default=True, description="read the next weights during attention in memory, if it can")
    communicate: bool = Field(default=True, description="count the all-reduces of tensor parallelism")


class System(Description):
    """Chips, equal or not, joined by a topology of links."""

    kind: Literal["system"]
    name: Name
    description: str = ""
    chips: tuple[ChipGroup, ...] = Field(min_length=1)
    topology: Topology
    link: LinkPort
    algorithm: Algorithm = Field(default="auto", description="of collectives; the fastest of all when auto")
    endpoint: Endpoint = Endpoint()
    policy: Policy = Policy()
    protocol: LinkProtocol | None = Field(default=None, description="of links that have RTL")
    ring: RingEngine | None = Field(default=None, description="engine of a ring's collectives in each chip")

    @model_validator(mode="after")
    def _check(self) -> System:
        total = sum(group.count for group in self.chips)
        wanted = self.policy.tensor * (self.policy.pipeline or 1)
        if wanted > total:
            raise ValueError(f"policy.tensor x policy.pipeline must be at most the {total} chips (got {wanted})")
        return self


def load_group(group: ChipGroup, overrides: list[tuple[str, str]] | None = None) -> Chip:
    """The chip of a group, with the group's changes to it and then ``overrides`` applied."""
    document = find_document(group.chip, LIBRARY, "chip")
    document.override(group.overrides.items(), places=group.places)
    return load_chip(document, overrides)


def load_system(name: str | Document, overrides: list[tuple[str, str]] | None = None) -> System:
    """Read a system from a file or the library, as `load_chip` does."""
    document = find_document(name, LIBRARY, "system")
    document.override(overrides or [])
    document.expect_kind(["system"])
    system = document.validate(System)
    refuse_idle_topology(system.topology, overrides or [])
    groups = []
    for number, group in enumerate(system.chips):
        way = "chips", number, "overrides"
        above = "".join(f"{key}." for key in way)
        groups.append(
            group.placed({path: replace(document.position((*way, path)), above=above) for path in group.overrides})
        )
    return system.model_copy(update={"chips": tuple(groups)})

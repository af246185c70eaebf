"""Operators that a plan puts among those of a workload: messages, and parts of attention that chips share by tokens."""

from __future__ import annotations

from typing import ClassVar

from siliconloom.workloads.operators import Attention, Operator


class SharedAttention(Attention, frozen=True, kw_only=True):
    """One chip's part of attention that ``ranks`` chips share by tokens; lengths are those of the whole sequences.

    ``scheme`` says how queries and keys of different chips meet.
    """

    ranks: int
    scheme: str

    _dimensions: ClassVar[tuple[str, ...]] = (*Attention._dimensions, "ranks", "scheme")

    @property
    def macs(self) -> int:
        return -(-super().macs // self.ranks)

    @property
    def unmasked_macs(self) -> int:
        return -(-super().unmasked_macs // self.ranks)

    @property
    def vector_elements(self) -> int:
        return -(-super().vector_elements // self.ranks)

    @property
    def input_elements(self) -> int:
        return -(-super().input_elements // self.ranks)

    @property
    def output_elements(self) -> int:
        return -(-super().output_elements // self.ranks)


class Collective(Operator, frozen=True, kw_only=True):
    """Messages among the chips that share the operators before it, put there by a plan.

    Parameters
    ----------
    operation
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``.
    dimension
        Of the plan: ``tensor``, ``context`` or ``expert``; the chips along it take part.
    elements
        The larger of a chip's input and result.
    """

    operation: str
    dimension: str
    elements: int

    kind: ClassVar[str] = "collective"
    _dimensions: ClassVar[tuple[str, ...]] = ("operation", "dimension", "elements")

    @property
    def input_elements(self) -> int:
        return self.elements

    @property
    def output_elements(self) -> int:
        return self.elements


__all__ = ["Collective", "SharedAttention"]

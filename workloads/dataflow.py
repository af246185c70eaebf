"""Which operator uses whose results: the part of a graph library that every command needs, without loading one."""

from __future__ import annotations

from collections.abc import Iterator

from siliconloom.workloads.operators import Operator


class Dataflow:
    """Operators by name, in program order, and the values that flow from one to another.

    An edge carries a number of elements, at the precision of the operator that makes them.
    """

    def __init__(self) -> None:
        self._operators: dict[str, Operator] = {}
        self._uses: dict[str, dict[str, int]] = {}
        """Elements by consumer, of each maker."""
        self._makers: dict[str, dict[str, None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._operators

    def __iter__(self) -> Iterator[str]:
        return iter(self._operators)

    def __len__(self) -> int:
        return len(self._operators)

    def __getitem__(self, name: str) -> Operator:
        return self._operators[name]

    def add(self, operator: Operator) -> None:
        """Put ``operator`` behind all others; one of the same name is replaced and keeps its place and edges."""
        self._operators[operator.name] = operator
        self._uses.setdefault(operator.name, {})
        self._makers.setdefault(operator.name, {})

    def connect(self, source: str, target: str, elements: int) -> None:
        """Let ``elements`` values flow from ``source`` to ``target``; a second edge of the same ends adds up."""
        self._uses[source][target] = self._uses[source].get(target, 0) + elements
        self._makers[target][source] = None

    def operators(self) -> list[Operator]:
        """All operators in program order."""
        return list(self._operators.values())

    @property
    def linked(self) -> bool:
        """Tell whether any operator uses another's results; those of a plain list do not."""
        return any(self._uses.values())

    def edges(self) -> Iterator[tuple[str, str, int]]:
        """Maker, user and elements of every edge, makers in program order."""
        for source, targets in self._uses.items():
            for target, elements in targets.items():
                yield source, target, elements

    def inputs(self, name: str) -> list[tuple[str, int]]:
        """Makers and elements of what an operator uses, in the order in which they were connected."""
        return [(source, self._uses[source][name]) for source in self._makers[name]]

    def predecessors(self, name: str) -> list[str]:
        """Operators whose results this one uses."""
        return list(self._makers[name])

    def successors(self, name: str) -> list[str]:
        """Operators that use the results of this one."""
        return list(self._uses[name])

    def bytes_of(self, source: str, elements: int) -> int:
        """Bytes of ``elements`` values that ``source`` makes."""
        return self._operators[source].precision.size(elements)


__all__ = ["Dataflow"]

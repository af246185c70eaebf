"""Circuits of the units: what the tile needs to know of each to place it, registered by ``rtl/npu/units``.

A unit's circuit takes a library and a `Geometry`, and has these ports beside those that its row names:

- ``issue``, ``entry``, ``free``: an instruction that is no barrier, as `rtl.npu.entries` lays it out; only while free.
- ``misaligned`` and, where its row says so, ``illegal``: pulses at issue; the instruction must then end by itself.

The memory port and the accumulator have users of their own: load, store, matmul and vector, which the tile wires.
What is registered elsewhere before a tile is made is placed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from siliconloom.arch.errors import LoomError
from siliconloom.arch.opcodes import Unit, built_units
from siliconloom.arch.registry import Registry, discover
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.geometry import Geometry


@dataclass(frozen=True)
class Port:
    """A port of the scratchpad that a unit has to itself.

    Parameters
    ----------
    own
        The unit's name of it: ``<own>``, ``<own>_address`` and ``<own>_data`` are the unit's ports. A read is a bit,
        its data come a cycle later; a write has an enable per byte.
    size
        Bytes of an access.
    order
        Among the readers, or the writers: who is served when a program gives a bank two users. Nobody else's.
    """

    own: str
    size: Callable[[Geometry], int]
    order: int


@dataclass(frozen=True, kw_only=True)
class UnitCircuit:
    """A unit's row.

    Parameters
    ----------
    make
        The circuit.
    reads, writes
        Ports of the scratchpad by their names there.
    read, done
        Outputs that pulse when operands have been read, and when results stand in memory from the next cycle on.
    busy
        Output that is high while it works.
    counts_issue
        The cycle of an issue counts as busy, too.
    illegal
        There is an output ``illegal``.
    in_flight
        Instructions and barriers of the unit that may be under way at once.
    """

    make: type[Circuit]
    reads: Mapping[str, Port] = field(default_factory=dict)
    writes: Mapping[str, Port] = field(default_factory=dict)
    read: str = "done"
    done: str = "done"
    busy: str = "working"
    counts_issue: bool = True
    illegal: bool = False
    in_flight: Callable[[Geometry], int] = lambda geometry: 8


UNIT_CIRCUITS: Registry[Unit, UnitCircuit] = Registry("the circuit of unit")


def unit_circuits() -> dict[str, UnitCircuit]:
    """Every unit's circuit by the unit's name, in the order of the units' codes.

    Raises
    ------
    LoomError
        When a unit claims a circuit and none is registered.
    """
    _discover()
    for unit in built_units():
        if unit not in UNIT_CIRCUITS:
            raise LoomError(f"no circuit is registered for the unit {unit.spec.name}")
    return {unit.spec.name: UNIT_CIRCUITS[unit] for unit in built_units()}


@cache
def _discover() -> None:
    """Units import what reads this table, so it is filled when it is first asked for."""
    discover("siliconloom.rtl.npu.units")


def _ports(side: Callable[[UnitCircuit], Mapping[str, Port]], geometry: Geometry) -> dict[str, int]:
    rows = [(port.order, name, port) for circuit in unit_circuits().values() for name, port in side(circuit).items()]
    return {name: port.size(geometry) for _, name, port in sorted(rows, key=lambda row: row[0])}


def readers(geometry: Geometry) -> dict[str, int]:
    """Read ports of the scratchpad, highest priority first, and the bytes of their accesses."""
    return _ports(lambda circuit: circuit.reads, geometry)


def writers(geometry: Geometry) -> dict[str, int]:
    """Write ports of the scratchpad, highest priority first, and the bytes of their accesses."""
    return _ports(lambda circuit: circuit.writes, geometry)


__all__ = ["UNIT_CIRCUITS", "Port", "UnitCircuit", "readers", "unit_circuits", "writers"]

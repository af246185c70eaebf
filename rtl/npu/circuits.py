"""Circuits of the units: what the tile needs to know of each to place it, registered by ``rtl/npu/units``.

A unit's circuit takes a library and a `Geometry`, and has these ports beside those that its row names:

- ``instruction``, the stream of its instructions, barriers aside, as `rtl.npu.entries` lays them out: it takes one in
  a cycle in which it is ready and the stream valid.
- ``misaligned`` and, where its row says so, ``illegal``: pulses as it takes one, which must then end by itself.

An engine of the memory port, that is, a unit whose `UnitSpec.memory` says what it does with main memory, has ``memory``
(`rtl.npu.interfaces.read_channels` or `write_channels`) and ``failed``, a pulse for an answer that is an error, too. It
has the port from the cycle after it took an instruction until it is ready again; what its channels still have to carry
then comes in order, see `rtl.npu.sharing`. What is registered elsewhere before a tile is made is placed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from msgspec import Struct, field

from siliconloom.arch.errors import LoomError
from siliconloom.arch.opcodes import Unit, built_units, memory_units
from siliconloom.arch.registry import Registry, discover
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.geometry import Geometry


class Port(Struct, frozen=True):
    """A port of the scratchpad that a unit has to itself.

    Parameters
    ----------
    own
        The unit's member, `rtl.npu.interfaces.local_read` or `local_write`.
    size
        Bytes of an access.
    order
        Among the readers, or the writers: who is served when a program gives a bank two users. Nobody else's.

    Units that never ask in one cycle may share a port that they read through: it has one name in their rows, and the
    size of its largest user.
    """

    own: str
    size: Callable[[Geometry], int]
    order: int


class UnitCircuit(Struct, frozen=True, kw_only=True):
    """A unit's row.

    Parameters
    ----------
    make
        The circuit.
    floats
        The circuit in tiles that compute in floating point, where it is another one.
    reads, writes
        Ports of the scratchpad by their names there.
    reads_sums, writes_sums
        The unit's members `rtl.npu.interfaces.sums_read` and `sums_write`, where it uses the accumulator.
    writes_rises
        The unit's member `rtl.npu.interfaces.rises_write`, where it says by what older sums are divided.
    sums_lines
        Lines of sums that it reads at once; each has a copy of the memory.
    read, done
        Outputs that pulse when operands have been read, and when results stand in memory from the next cycle on.
    busy
        Output that is high while it works.
    counts_issue
        The cycle of an issue counts as busy, too.
    illegal
        There is an output ``illegal``.
    pins
        Members that are ports of the tile, too, by their names there behind the unit's and an underscore.
    holds_start
        A run begins when the unit's output ``rests`` is high. From when it is asked for until then its input ``hold``
        is, and ``restart`` pulses as the run begins.
    in_flight
        Instructions and barriers of the unit that may be under way at once; of an engine of the memory port as many as
        the DMA has outstanding.
    """

    make: type[Circuit]
    floats: type[Circuit] | None = None
    reads: Mapping[str, Port] = field(default_factory=dict)
    writes: Mapping[str, Port] = field(default_factory=dict)
    reads_sums: str = ""
    writes_sums: str = ""
    writes_rises: str = ""
    sums_lines: Callable[[Geometry], int] = lambda geometry: 1
    read: str = "done"
    done: str = "done"
    busy: str = "working"
    counts_issue: bool = True
    illegal: bool = False
    pins: Callable[[Geometry], Mapping[str, Any]] = lambda geometry: {}
    holds_start: bool = False
    in_flight: Callable[[Geometry], int] = lambda geometry: 8


UNIT_CIRCUITS: Registry[Unit, UnitCircuit] = Registry("the circuit of unit")


def unit_circuits(tile: Any = None) -> dict[str, UnitCircuit]:
    """The circuits of a tile's units by their names, in the order of their codes; of every tile's where none is given.

    Raises
    ------
    LoomError
        When a unit claims a circuit and none is registered.
    """
    _discover()
    units = built_units(tile)
    for unit in units:
        if unit not in UNIT_CIRCUITS:
            raise LoomError(f"no circuit is registered for the unit {unit.spec.name}")
    return {unit.spec.name: UNIT_CIRCUITS[unit] for unit in units}


def unit_circuit(library: Library, unit: str, geometry: Geometry) -> Circuit:
    """The circuit of a unit, which has every member that its row and the tile ask for.

    Raises
    ------
    LoomError
        Naming the member that is not there.
    """
    row = unit_circuits(geometry)[unit]
    kind = row.make if geometry.dtype.is_integer or row.floats is None else row.floats
    made = library.make(kind, geometry)
    needed = ["instruction", "misaligned", row.read, row.done, row.busy]
    needed += [port.own for port in (*row.reads.values(), *row.writes.values())]
    needed += [own for own in (row.reads_sums, row.writes_sums, row.writes_rises) if own]
    needed += ["illegal"] if row.illegal else []
    needed += ["memory", "failed"] if unit in engines() else []
    missing = next((name for name in needed if name not in made.signature.members), None)
    if missing is not None:
        raise LoomError(f"the circuit of the unit {unit} has no member {missing}")
    return made


@cache
def _discover() -> None:
    """Units import what reads this table, so it is filled when it is first asked for."""
    discover("siliconloom.rtl.npu.units")


def _ports(side: Callable[[UnitCircuit], Mapping[str, Port]], geometry: Geometry) -> dict[str, int]:
    circuits = unit_circuits(geometry).values()
    rows = [(port.order, name, port) for circuit in circuits for name, port in side(circuit).items()]
    sizes: dict[str, int] = {}
    for _, name, port in sorted(rows, key=lambda row: row[0]):
        sizes[name] = max(sizes.get(name, 0), port.size(geometry))
    return sizes


def sharers(tile: Any) -> dict[str, list[tuple[str, Port]]]:
    """Read ports of the scratchpad, and who uses each: the unit's name and its port."""
    users: dict[str, list[tuple[str, Port]]] = {}
    for unit, circuit in unit_circuits(tile).items():
        for name, port in circuit.reads.items():
            users.setdefault(name, []).append((unit, port))
    return users


def readers(geometry: Geometry) -> dict[str, int]:
    """Read ports of the scratchpad, highest priority first, and the bytes of their accesses."""
    return _ports(lambda circuit: circuit.reads, geometry)


def writers(geometry: Geometry) -> dict[str, int]:
    """Write ports of the scratchpad, highest priority first, and the bytes of their accesses."""
    return _ports(lambda circuit: circuit.writes, geometry)


def sums_readers(tile: Any) -> dict[str, str]:
    """Units that read the accumulator, in the order of their codes, and their members for it."""
    return {unit: circuit.reads_sums for unit, circuit in unit_circuits(tile).items() if circuit.reads_sums}


def sums_writers(tile: Any) -> dict[str, str]:
    """Units that write sums, in the order of their codes, and their members for it."""
    return {unit: circuit.writes_sums for unit, circuit in unit_circuits(tile).items() if circuit.writes_sums}


def rises_writers(tile: Any) -> dict[str, str]:
    """Units that say by what older sums are divided, in the order of their codes, and their members for it."""
    return {unit: circuit.writes_rises for unit, circuit in unit_circuits(tile).items() if circuit.writes_rises}


def engines() -> dict[str, str]:
    """Units that share the memory port, in the order of their codes, and what each does with main memory."""
    return {unit.spec.name: unit.spec.memory for unit in memory_units() if unit.spec.circuit}


__all__ = [
    "UNIT_CIRCUITS",
    "Port",
    "UnitCircuit",
    "engines",
    "readers",
    "rises_writers",
    "sharers",
    "sums_readers",
    "sums_writers",
    "unit_circuit",
    "unit_circuits",
    "writers",
]

"""Ways in which a lane works, and which of them make each vector function a circuit.

A lane is one pipeline with two multipliers (`rtl.npu.lane`). A *way* is a bit that goes to every lane and what the
stages do while it is set; several hold at once, none of them for a copy. A function is given the ways that make it.
The modules of ``rtl/npu/functions`` register both; what is registered elsewhere before a tile is made is built, too.

Where two ways of a function want the same stage, the one that comes first among the ways has its will.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Value
from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.arch.registry import Registry, discover
from siliconloom.arch.vector import BUILT, VectorFunction

FACTOR_BITS = 17
"""Bits of a factor of a product, with its sign."""
Branch = tuple[Value, dict[str, Any]]
Hook = Callable[["Stage", Value], list[Branch]]
"""From what a stage sees, and whether a way (or one that shares the hook) holds, to conditions and what they assign.

The first condition that holds counts. Names are those of the stage, see `Way`.
"""


class Stage(Struct, frozen=True):
    """Signals of a lane that hooks may read, all of them bit vectors: signs are the reader's.

    Parameters
    ----------
    a, b
        Operands, 8 bits; for the hook ``operand`` and ``multiply``.
    value
        What ``operand`` made of ``a``; for ``multiply``.
    looked_up
        The table's byte for ``a``; for ``operand``.
    m0, m1, shift
        Scalars: 16, 16 and 6 bits.
    bias, multiplier, column_shift
        The column's parameters: 32, 16 and 6 bits.
    more
        Signals that belong to the row functions and the rotation: see `rtl.npu.lane`.
    """

    a: Value
    b: Value
    value: Value
    looked_up: Value
    m0: Value
    m1: Value
    shift: Value
    bias: Value
    multiplier: Value
    column_shift: Value
    more: dict[str, Value]


class Way(Struct, frozen=True, kw_only=True):
    """What the stages of a lane do while a bit is set; a hook that is left out changes nothing.

    Parameters
    ----------
    name
        Also of the unit's signal, ``is_<name>``.
    order
        Place among the ways; nobody else's.
    operand
        Assigns ``value`` (8 bits), which is ``a`` otherwise.
    multiply
        Assigns any of ``total`` (33 bits, signed; ``value`` otherwise), ``factor`` (17 bits, signed; 1 otherwise) and
        ``other`` (25 bits, signed; 0 otherwise): the product is total * factor + other.
    places
        Assigns ``by`` (6 bits; 0 otherwise): the product is divided by 2^``by``, halves to even, and saturates to 24
        bits.
    scale
        Assigns any of ``scale`` (17 bits, signed; 1 otherwise) and ``addend`` (32 bits, signed; 0 otherwise): the
        second product is value * scale + addend.
    late
        Assigns ``late`` (6 bits; 0 otherwise): the second product is divided by 2^``late``, halves to even, and
        saturates to the result's 8 bits.
    """

    name: str
    order: int
    operand: Hook | None = None
    multiply: Hook | None = None
    places: Hook | None = None
    scale: Hook | None = None
    late: Hook | None = None


def when(**assigned: Callable[[Stage], Any]) -> Hook:
    """A hook that assigns these, computed from the stage, whenever its way holds."""

    def hook(stage: Stage, holds: Value) -> list[Branch]:
        return [(holds, {name: value(stage) for name, value in assigned.items()})]

    return hook


class FunctionCircuit(Struct, frozen=True):
    """The ways that make a function, by name, and whether a norm takes the mean away."""

    ways: tuple[str, ...] = ()
    centred: bool = False


WAYS: Registry[str, Way] = Registry("the lane's way")
CIRCUITS: Registry[VectorFunction, FunctionCircuit] = Registry("the circuit of")


def register_way(way: Way) -> None:
    """Add a way; raises `LoomError` when its name or its order is taken."""
    other = next((each for each in WAYS.values() if each.order == way.order), None)
    if other is not None:
        raise LoomError(f"the lane's way {way.name}: its order {way.order} is that of {other.name}")
    WAYS.add(way.name, way)


def register_circuit(function: VectorFunction, *ways: str, centred: bool = False) -> None:
    """Say which ways make a function; raises `LoomError` when that is already said."""
    CIRCUITS.add(function, FunctionCircuit(ways, centred))


def lane_ways() -> tuple[Way, ...]:
    """The ways of a lane, in their order: the bits of its port ``kind``.

    Raises
    ------
    LoomError
        When a function claims a circuit and none is registered, or one names a way that is not.
    """
    for function in BUILT:
        if function not in CIRCUITS:
            raise LoomError(f"no circuit is registered for the vector function {function.value}")
        missing = [name for name in CIRCUITS[function].ways if name not in WAYS]
        if missing:
            raise LoomError(f"the vector function {function.value} needs {missing[0]}, which is no way of a lane")
    return tuple(sorted(WAYS.values(), key=lambda way: way.order))


def functions_of(way: Way) -> set[VectorFunction]:
    """The functions that a way takes part in."""
    return {function for function in BUILT if way.name in CIRCUITS[function].ways}


discover("siliconloom.rtl.npu.functions")
OWN = dict(WAYS), dict(CIRCUITS)
"""What this package registers."""


def only_own() -> bool:
    """Whether nothing else is registered."""
    return (dict(WAYS), dict(CIRCUITS)) == OWN


__all__ = [
    "CIRCUITS",
    "FACTOR_BITS",
    "WAYS",
    "Branch",
    "FunctionCircuit",
    "Hook",
    "Stage",
    "Way",
    "functions_of",
    "lane_ways",
    "only_own",
    "register_circuit",
    "register_way",
    "when",
]

"""Ways in which a lane works in floating point, and which of them make each vector function a circuit.

As in `rtl.npu.ways` a *way* is a bit that goes to every lane of `rtl.npu.float_lane` and what its stages do while it is
set; several hold at once, none of them for a copy. The modules of ``rtl/npu/float_functions`` register ways and
functions; what is registered elsewhere before a tile is made is built, too. Where two ways of a function want the same
stage, the one that comes first among the ways has its will.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amaranth import Const, Module
from amaranth.hdl import Value
from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.arch.registry import Registry, discover
from siliconloom.arch.vector import BUILT_IN_FLOATS, VectorFunction
from siliconloom.rtl.cells.floating import Cut, uncut

UNIT, MINUS_ZERO = Const(0x3F800000, 32), Const(1 << 31, 32)
"""What changes no number that is multiplied by it, or that it is added to."""


class FloatStage(Struct, frozen=True):
    """Numbers in fp32 that the hooks of one stage may read.

    Parameters
    ----------
    a, b
        Operands; ``b`` for the hook ``multiply``.
    value
        What the stage has got: the sum of the accumulator (``multiply``), the product of ``other`` and ``scale``
        (``add``), the value that passes (``late``, ``close``).
    m0, m1
        Scalars.
    bias, multiplier
        The column's parameters.
    more
        Signals that belong to the row functions, the rotation and the activations: see `rtl.npu.float_lane`.
    held
        Puts values behind the registers that divide the stage, if any do: all that a hook assigns goes through it, or
        through ``cut`` in a circuit of its own.
    cut
        Of a product or a sum what passes the places where registers divide the stage, behind them.
    """

    a: Value
    b: Value
    value: Value
    m0: Value
    m1: Value
    bias: Value
    multiplier: Value
    more: Mapping[str, Value]
    held: Callable[[Value], Value] = lambda value: value
    cut: Cut = uncut


FloatHook = Callable[[Module, FloatStage], dict[str, Value]]
"""From what a stage sees to what it assigns while its way holds; circuits go into the module."""


class FloatWay(Struct, frozen=True, kw_only=True):
    """What the stages of a lane do while a bit is set; a hook that is left out changes nothing.

    Parameters
    ----------
    name
        Also of the unit's signal, ``is_<name>``.
    order
        Place among the ways; nobody else's.
    multiply
        Stage 2. Assigns any of ``x`` (``a`` otherwise) and ``factor`` (1 otherwise), of the first product, and of
        ``other`` (``b`` otherwise) and ``scale`` (``m1`` otherwise), of the second.
    add
        Stage 3. Assigns ``addend`` (-0 otherwise): to the first product. The product of ``other`` and ``scale`` is
        behind the registers.
    late
        Stage 8. Assigns any of ``x`` (the sum otherwise) and ``factor`` (1 otherwise) of the last product.
    close
        Stage 9. Assigns ``closed`` (the last product otherwise), which is rounded to an element.
    """

    name: str
    order: int
    multiply: FloatHook | None = None
    add: FloatHook | None = None
    late: FloatHook | None = None
    close: FloatHook | None = None


FLOAT_WAYS: Registry[str, FloatWay] = Registry("the way in floating point")
FLOAT_CIRCUITS: Registry[VectorFunction, tuple[str, ...]] = Registry("the circuit in floating point of")


def assigns(**assigned: Callable[[FloatStage], Value]) -> FloatHook:
    """A hook that assigns these, computed from the stage with no circuit of its own."""

    def hook(m: Module, stage: FloatStage) -> dict[str, Value]:
        return {name: stage.held(value(stage)) for name, value in assigned.items()}

    return hook


def register_float_way(way: FloatWay) -> None:
    """Add a way; raises `LoomError` when its name or its order is taken."""
    other = next((each for each in FLOAT_WAYS.values() if each.order == way.order), None)
    if other is not None:
        raise LoomError(f"the way in floating point {way.name}: its order {way.order} is that of {other.name}")
    FLOAT_WAYS.add(way.name, way)


def register_float_circuit(function: VectorFunction, *ways: str) -> None:
    """Say which ways make a function; raises `LoomError` when that is already said."""
    FLOAT_CIRCUITS.add(function, ways)


def float_ways() -> tuple[FloatWay, ...]:
    """The ways of a lane, in their order: the bits of its port ``kind``.

    Raises
    ------
    LoomError
        When a function claims a circuit and none is registered, or one names a way that is not.
    """
    for function in BUILT_IN_FLOATS:
        if function not in FLOAT_CIRCUITS:
            raise LoomError(f"no circuit in floating point is there for the vector function {function.value}")
        missing = [name for name in FLOAT_CIRCUITS[function] if name not in FLOAT_WAYS]
        if missing:
            raise LoomError(f"the vector function {function.value} needs {missing[0]}, no way in floating point")
    return tuple(sorted(FLOAT_WAYS.values(), key=lambda way: way.order))


def functions_in(way: FloatWay) -> set[VectorFunction]:
    """The functions that a way takes part in."""
    return {function for function in BUILT_IN_FLOATS if way.name in FLOAT_CIRCUITS[function]}


discover("siliconloom.rtl.npu.float_functions")
OWN = dict(FLOAT_WAYS), dict(FLOAT_CIRCUITS)
"""What this package registers."""


def only_own_floats() -> bool:
    """Whether nothing else is registered."""
    return (dict(FLOAT_WAYS), dict(FLOAT_CIRCUITS)) == OWN


__all__ = [
    "FLOAT_CIRCUITS",
    "FLOAT_WAYS",
    "MINUS_ZERO",
    "UNIT",
    "FloatHook",
    "FloatStage",
    "FloatWay",
    "assigns",
    "float_ways",
    "functions_in",
    "only_own_floats",
    "register_float_circuit",
    "register_float_way",
]

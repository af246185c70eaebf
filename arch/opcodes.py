"""Units and their opcodes: rows of a table that nobody lists.

`register_unit` adds a unit with all that instruction set, assembler and documents need to know of it; the units of this
package are in ``arch/units``. Its duration is registered in `sim.timing.opcodes`, its values in `sim.golden.opcodes`,
its circuit in `rtl.npu.circuits`. The sequencer is registered here: its instructions are what a program consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Literal, TypeVar

from msgspec import Struct

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.registry import Live, Registry

OPCODE_BITS = 5
UNIT_BITS = 3
Found = TypeVar("Found")


class Format(Enum):
    """What follows the header of a word."""

    HEADER = "nothing"
    TRANSFER = "one address in main memory, one in local memory"
    GATHER = "one address in main memory, two in local memory"
    COMPUTE = "four local addresses"


MOVING = (Format.TRANSFER, Format.GATHER)
"""Formats of what moves bytes between main memory and local memory."""


def _nothing(*_: Any) -> Any:
    return ()


def _no_multiples(*_: Any) -> dict[str, int]:
    return {}


def _never(*_: Any) -> bool:
    return False


class OpcodeSpec(Struct, frozen=True, kw_only=True):
    """What an opcode is. Of the functions, the first argument is the `Instruction`, the second its `NpuTile`.

    Parameters
    ----------
    name
        In listings and messages.
    code
        In words, below 2^`OPCODE_BITS`; nobody else's.
    result
        What it does, for ``docs/npu.md``.
    format
        Of its word.
    sizes
        Those of m, n and k that are at least one.
    operands
        Of an instruction: what a listing shows, a text each.
    accesses
        The `arch.access.Access` of one execution in local memory.
    multiples
        Bytes of which local addresses must be multiples, by the field.
    adds
        Whether an instruction may add to what is there, or go on from it: else ``accumulate`` and ``overwrite`` say
        nothing, and an assembler takes neither.
    check
        Of an instruction, its tile and its number: raises `IllegalProgram` for what the unit would refuse.
    """

    name: str
    code: int
    result: str
    format: Format = Format.HEADER
    sizes: tuple[str, ...] = ()
    operands: Callable[[Any], Iterable[str]] = _nothing
    accesses: Callable[[Any, Any], Iterable[Any]] = _nothing
    multiples: Callable[[Any, Any], dict[str, int]] = _no_multiples
    adds: Callable[[Any], bool] = _never
    check: Callable[[Any, Any, int], object] = _nothing


class UnitSpec(Struct, frozen=True, kw_only=True):
    """A unit: something with a queue.

    Parameters
    ----------
    name
        In programs, registers and documents.
    code
        In words, below 2^`UNIT_BITS`; nobody else's.
    opcodes
        What goes to its queue, beside barriers.
    entry
        What its queue holds of an instruction: opcode, m, n, k, pitch, local_pitch, function; memory, local (the local
        address of a transfer), a, b, c, d, all resolved; add (it adds to what is there), indexed (it is a gather),
        rescale (a product rescales what is there), narrow (operands may be, see `arch.layout`), split (of lines of
        sums), weights and group (codes of the format of packed weights, or of results that are kept in fewer bits),
        a_slot, b_slot and c_slot (which slot the addresses are in).
    memory
        What it does with main memory, ``read`` or ``write``: its instructions then move m rows of n bytes, ``pitch``
        apart there, and it shares the memory port with others of the kind. Nothing when empty.
    circuit
        An NPU tile has it.
    needs
        The key of a tile without which it has none of it; every tile has it when empty.
    shown
        Its name in results; that in programs when empty.
    """

    name: str
    code: int
    opcodes: tuple[OpcodeSpec, ...]
    entry: tuple[str, ...] = ()
    memory: Literal["", "read", "write"] = ""
    circuit: bool = True
    needs: str = ""
    shown: str = ""


class _Coded(type):
    """Registered members are attributes of their class by their names in capitals, in the order of their codes."""

    rows: Registry[str, Any]

    def __getattr__(cls: type[Found], name: str) -> Found:
        raise AttributeError(f"no {cls.__name__.lower()} {name.lower()} is registered")

    def __getitem__(cls: type[Found], name: str) -> Found:
        return cls.rows[name]  # type: ignore[attr-defined, no-any-return]

    def __iter__(cls: type[Found]) -> Iterator[Found]:
        return iter(sorted(cls.rows.values()))  # type: ignore[attr-defined]

    def __len__(cls) -> int:
        return len(cls.rows)


class _Code(int):
    """A number in words with a name."""

    rows: Registry[str, Any]
    name: str
    __str__ = int.__repr__

    def __new__(cls, code: int) -> Any:
        found = next((each for each in cls.rows.values() if int(each) == code), None)
        if found is None:
            raise ValueError(f"{code} is no {cls.__name__}")
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {int(self)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (int(self),)

    @property
    def value(self) -> int:
        """The number alone."""
        return int(self)

    @classmethod
    def _add(cls, name: str, code: int, bits: int) -> Any:
        if not name.isidentifier() or name != name.lower():
            raise LoomError(f"an {cls.__name__.lower()}'s name is a lower-case identifier (got {name!r})")
        if not 0 <= code < 1 << bits:
            raise LoomError(f"{cls.__name__.lower()} {name}: a code has {bits} bits (got {code})")
        taken = next((each for each in cls.rows.values() if int(each) == code), None)
        if taken is not None and taken.name != name.upper():
            raise LoomError(f"{cls.__name__.lower()} {name}: its code {code} is that of {taken.name.lower()}")
        made = int.__new__(cls, code)
        made.name = name.upper()
        cls.rows.add(made.name, made)
        setattr(cls, made.name, made)
        return made


class Unit(_Code, metaclass=_Coded):
    """Which queue an instruction goes to: its number in words."""

    rows: Registry[str, Unit] = Registry("unit")
    spec: UnitSpec


class Opcode(_Code, metaclass=_Coded):
    """What an instruction does: its number in words. A barrier has no unit of its own."""

    rows: Registry[str, Opcode] = Registry("opcode")
    spec: OpcodeSpec
    unit: Unit


def register_unit(spec: UnitSpec) -> Unit:
    """Add a unit and its opcodes.

    Raises
    ------
    LoomError
        And adds nothing, when a name or a code is taken, or what the unit does with main memory does not fit its
        opcodes.
    """
    _check_memory(spec)
    unit: Unit = Unit._add(spec.name, spec.code, UNIT_BITS)
    unit.spec = spec
    made: list[Opcode] = []
    try:
        for each in spec.opcodes:
            opcode: Opcode = Opcode._add(each.name, each.code, OPCODE_BITS)
            opcode.spec, opcode.unit = each, unit
            made.append(opcode)
    except LoomError:
        for opcode in made:
            _remove(opcode)
        _remove(unit)
        raise
    return unit


def _check_memory(spec: UnitSpec) -> None:
    """The levels of memory, the traffic and the tile's memory port read a transfer off m, n, pitch and memory."""
    if not spec.memory:
        return
    if spec.memory not in ("read", "write"):
        raise NotSupported(f"a unit that does '{spec.memory}' with main memory (unit {spec.name}); read or write")
    for each in spec.opcodes:
        missing = [size for size in ("m", "n") if size not in each.sizes]
        if each.format not in MOVING or missing:
            raise LoomError(
                f"unit {spec.name}: an opcode that moves bytes to or from main memory has the format TRANSFER and "
                f"sizes m and n (got {each.format.name} and {', '.join(each.sizes) or 'none'} for {each.name})"
            )


def remove_unit(unit: Unit) -> None:
    """Take a unit and its opcodes back; raises `LoomError` when they are not registered."""
    for each in unit.spec.opcodes:
        _remove(Opcode[each.name.upper()])
    _remove(unit)


def _remove(code: Unit | Opcode) -> None:
    code.rows.remove(code.name)
    delattr(type(code), code.name)


class _UnitOf(Mapping[Opcode, Unit]):
    """Unit of each opcode; a barrier names its own."""

    def __getitem__(self, opcode: Opcode) -> Unit:
        if opcode == Opcode.BARRIER:
            raise KeyError(opcode)
        return opcode.unit

    def __iter__(self) -> Iterator[Opcode]:
        return (opcode for opcode in Opcode if opcode != Opcode.BARRIER)

    def __len__(self) -> int:
        return len(Opcode) - 1


UNIT_OF = _UnitOf()


def memory_units(*uses: str) -> tuple[Unit, ...]:
    """Units that do this with main memory (anything when nothing is given), in the order of their codes."""
    return tuple(unit for unit in Unit if unit.spec.memory and unit.spec.memory in (uses or (unit.spec.memory,)))


def _of_format(wanted: Format) -> Live[Opcode]:
    return Live(lambda: iter(Opcode), lambda opcode: opcode.spec.format is wanted)


TRANSFERS, GATHERS, COMPUTES = (_of_format(each) for each in (Format.TRANSFER, Format.GATHER, Format.COMPUTE))


def built_units(tile: Any = None) -> tuple[Unit, ...]:
    """Units that an NPU tile has circuits of, in the order of their codes; those of every tile where none is given.

    ``tile`` is an `arch.tile.NpuTile`, or whatever else has the attributes that `UnitSpec.needs` names.
    """
    return tuple(
        unit
        for unit in Unit
        if unit.spec.circuit and (not unit.spec.needs or getattr(tile, unit.spec.needs, None) is not None)
    )


def shown_units(tile: Any = None) -> dict[Unit, str]:
    """What a tile's units are called in results, the sequencer among them."""
    return {unit: unit.spec.shown or unit.spec.name for unit in (Unit(0), *built_units(tile))}


def opcode_table() -> str:
    """The registered opcodes as a table of Markdown, which ``docs/npu.md`` shows."""
    lines = ["| opcode | code | unit | code | word | what it does |", "|---|---|---|---|---|---|"]
    for opcode in Opcode:
        spec, unit = opcode.spec, opcode.unit
        word = "header" if spec.format is Format.HEADER else f"header, {spec.format.value}"
        has_unit = opcode == Opcode.BARRIER or unit.spec.circuit or unit == Unit.SEQUENCER
        names = ("any", "any") if opcode == Opcode.BARRIER else (unit.spec.name, str(unit))
        result = spec.result if has_unit else f"{spec.result}; no circuit"
        lines.append(f"| {spec.name} | {spec.code} | {names[0]} | {names[1]} | {word} | {result} |")
    return "\n".join(lines)


register_unit(
    UnitSpec(
        name="sequencer",
        code=0,
        circuit=False,
        opcodes=(
            OpcodeSpec(name="end", code=0, result="ends the program"),
            OpcodeSpec(name="loop", code=1, operands=lambda i: [str(i.m)], result="opens a loop of m iterations"),
            OpcodeSpec(name="next", code=2, result="closes the innermost loop"),
            OpcodeSpec(
                name="barrier",
                code=3,
                operands=lambda i: [i.unit.name.lower()],
                result="waits, and releases and posts when everything before it in its queue has",
            ),
        ),
    )
)

"""The instruction set: macro-instructions with affine addresses, nested hardware loops and counting semaphores.

Every instruction is one word (`arch.word`), which is encoded and decoded here; `arch.listing` writes it as text.

Execution model: a sequencer walks the program, runs the loops (``LOOP`` ... ``NEXT``, at most `LEVELS` deep) and
dispatches every other instruction into the queue of its unit; each unit takes its queue in order. An instruction
starts when every semaphore in ``wait`` is above zero (and takes one from each); it adds one to each semaphore in
``release`` when its operands have been read and to each in ``post`` when its results are complete. ``first_wait``
applies only when all loop levels in ``first`` are in their first iteration, ``last_post`` only when all levels in
``last`` are in their last. A barrier does nothing else; it releases and posts when everything before it in its queue
has read its operands, and is complete. A semaphore is waited for by one unit and is posted by one unit, always in the
same way (release or post), so a program is a timed event graph and its outcome does not depend on races.

An address is ``base + sum(index[l] * stride[l])``, plus ``slot`` when the parity of the indices named in ``parity``
(exclusive-or ``odd``) is one: the alternation of a double buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from operator import attrgetter, le
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import astuple, force_setattr

from siliconloom.arch.datatype import CACHE_SCALED, DataType, Packing, scale_bits
from siliconloom.arch.errors import LoomError
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.opcodes import COMPUTES, TRANSFERS, UNIT_OF, Format, Opcode
from siliconloom.arch.opcodes import Unit as UnitCode
from siliconloom.arch.registry import discover
from siliconloom.arch.vector import FUNCTIONS, VectorFunction
from siliconloom.arch.word import (
    BY_ROWS,
    CODES,
    DTYPES,
    GROUP_BITS,
    HEADER,
    LAYOUTS,
    LEVELS,
    LOCAL_BITS,
    SEMAPHORES,
    UNGROUPED,
    WORD_BITS,
    word_layout,
)

SEMAPHORE_LIMIT = 4095
"""Largest count a semaphore holds."""


Unit: type[UnitCode] = UnitCode
"""`arch.opcodes.Unit`, as a variable: for type checkers ``x = Unit[name]`` is a member then, and no name of a type."""


class Address(Struct, frozen=True, kw_only=True):
    """An affine address; ``slot``, ``parity`` and ``odd`` only in local memory. Bytes."""

    base: int = 0
    strides: tuple[int, ...] = (0,) * LEVELS
    slot: int = 0
    parity: int = 0
    odd: int = 0

    def at(self, indices: Sequence[int]) -> int:
        """Byte address at the loop ``indices`` (outermost first)."""
        found = self.base
        for index, stride in zip(indices, self.strides, strict=False):
            found += index * stride
        return found + self.slot_at(indices) * self.slot if self.slot else found

    def slot_at(self, indices: Sequence[int]) -> int:
        """Which of two slots it is in at the loop ``indices``, 0 or 1."""
        toggle = self.odd
        for level, index in enumerate(indices):
            toggle ^= index & (self.parity >> level) & 1
        return toggle


def last_seen(mask: int) -> int:
    """The last column that row 0 sees under a mask, from what stands in the place of an address: -1 where it is none.

    Addresses wrap, so that a negative number is one with the highest bit set.
    """
    half = 1 << LOCAL_BITS - 1
    return ((mask + half) & (2 * half - 1)) - half


class Instruction(Struct, frozen=True, kw_only=True, eq=False):
    """One macro-instruction.

    Parameters
    ----------
    opcode, unit
        What it does, and where; ``unit`` is set by the opcode except for a barrier.
    dtype, function
        Operand format; function of the vector unit.
    wait, release, post, first_wait, last_post
        Semaphore masks, see the module's text.
    first, last, overwrite
        Masks of loop levels. A matmul overwrites its accumulator when all levels in ``overwrite`` are in their
        first iteration and adds to it otherwise; with ``accumulate`` it always adds. In the same iterations a vector
        function that carries begins its rows' peaks and totals anew, or goes on (`FunctionSpec.carries`).
    rescale
        Of a matmul that adds: what each row has before is divided by the power of two by which a function that carries
        has let the row's peak rise, of those functions the one whose results lie in the slot that ``a`` is in.
    packing
        Of a matmul whose stationary operand is packed: its format (`arch.packing`). Of a vector function that keeps
        its operand: the format, without groups, that its results are rounded to, where they have fewer bits.
    compression
        Of a load: bytes of main memory that become one byte of local memory, where they are compressed without loss.
        For timing only, not encoded: no circuit makes them larger.
    narrow
        Of a computation: rows, panels and blocks of no more than half of what a line has lie in lines of the next power
        of two, see `arch.layout`. Of panels with a packing those in the array's own format, `packing.may_be_narrow`.
    split
        Of a matmul, and of a function that reads sums: the last panel's lie in lines of C / 2^split, see `arch.layout`.
    m, n, k
        Matmul: C[m,n] = A[m,k] B[k,n]. Vector: m rows, n columns, k operands. Transfer: m rows of n bytes, one
        every ``pitch`` bytes of main memory and every ``local_pitch`` bytes of local memory. Gather: m of the k rows of
        a table, of n bytes each. Loop: m iterations.
    memory, a, b, c, d
        Transfer: ``memory`` and ``a``. Gather: the table ``memory``, the rows ``a``, their indices ``b``. Matmul:
        operands ``a`` and ``b``, sums ``c``; ``d`` is no address, but bytes from row to row of the operand that moves,
        or 0 where its rows adjoin. Vector: operands ``a`` and ``b``, result ``c``, parameters ``d``.
    operator
        Index into the program's operators; for reports only, not encoded.
    """

    opcode: Opcode
    unit: UnitCode = UnitCode.SEQUENCER
    dtype: DataType = DataType.INT8
    function: VectorFunction = VectorFunction.COPY
    wait: int = 0
    release: int = 0
    post: int = 0
    first_wait: int = 0
    last_post: int = 0
    first: int = 0
    last: int = 0
    accumulate: int = 0
    overwrite: int = 0
    rescale: int = 0
    packing: Packing | None = None
    compression: float | None = None
    narrow: int = 0
    split: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    pitch: int = 0
    local_pitch: int = 0
    memory: Address = Address()
    a: Address = Address()
    b: Address = Address()
    c: Address = Address()
    d: Address = Address()
    operator: int = 0

    def __post_init__(self) -> None:
        if self.opcode is not _BARRIER:
            force_setattr(self, "unit", self.opcode.unit)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instruction) and astuple(self)[:-1] == astuple(other)[:-1]

    def __hash__(self) -> int:
        return hash(astuple(self)[:-1])

    @property
    def weights(self) -> int:
        """The code of the format of packed weights, 0 where they are as the other operand."""
        if self.packing is not None and self.packing.dtype not in CODES:  # sparse weights, which no word says
            return 0
        return CODES.index(self.packing and self.packing.dtype)

    @property
    def group(self) -> int:
        """The power of two that the rows of a group of packed weights are; of values with scales `BY_ROWS`."""
        if self.packing is not None and self.packing.by_rows:
            return BY_ROWS
        if self.packing is None or not self.packing.group:
            return UNGROUPED if self.packing is not None and scale_bits(self.packing.dtype) else 0
        return _power(self.packing.group)

    def adds(self, indices: Sequence[int]) -> bool:
        """Whether it adds to what is there at the loop ``indices``, rather than put something in its place."""
        first = all(index == 0 for level, index in enumerate(indices) if self.overwrite >> level & 1)
        return bool(self.accumulate) or not first


class Semaphore(Struct, frozen=True):
    """A counting semaphore: its name, its count at the start, and what waiting for it means in reports."""

    name: str
    initial: int = 0
    cause: str = "operands"


class Program(Struct, frozen=True):
    """Instructions, semaphores and the names of the operators they belong to.

    ``tiles`` says how many of a chip's tiles execute each instruction, each on its share, while the others are idle and
    leave the memory to them; all of them when it is empty.
    """

    instructions: tuple[Instruction, ...]
    semaphores: tuple[Semaphore, ...] = ()
    operators: tuple[str, ...] = ("program",)
    tiles: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check(self)

    def tiles_of(self, number: int, chip_tiles: int) -> int:
        """Tiles that execute an instruction, of so many that the chip has."""
        return self.tiles[number] if self.tiles else chip_tiles

    def executions(self) -> Iterator[tuple[int, Instruction, list[int], list[int]]]:
        """What is carried out, in order, loops unrolled, up to the end.

        Number of the instruction, the instruction, and index and count of each loop around it, the outermost first.
        """
        stack: list[list[int]] = []
        place, code = 0, self.instructions
        while code[place].opcode != Opcode.END:
            i = code[place]
            if i.opcode == Opcode.LOOP:
                stack.append([place, 0, i.m])
            elif i.opcode == Opcode.NEXT:
                stack[-1][1] += 1
                if stack[-1][1] < stack[-1][2]:
                    place = stack[-1][0]
                else:
                    stack.pop()
            else:
                yield place, i, [each[1] for each in stack], [each[2] for each in stack]
            place += 1

    def encode(self) -> bytes:
        """The program as it stands in memory: 256 bytes an instruction."""
        return b"".join(encode(i) for i in self.instructions)


class Stretch(Struct, frozen=True, eq=False):
    """Instructions that stand one after the other, for programs that are only asked how long they take.

    ``working`` are the tiles that execute each, none where all of the chip's do. Which slots of rings they use depends
    on what stands before and around them, so that elsewhere their addresses are not those of a program that runs;
    nobody's time depends on that. Whoever times them puts down in ``kept`` what is the same in the next program.
    """

    instructions: tuple[Instruction, ...]
    working: tuple[int | None, ...]
    kept: dict[Hashable, Any] = field(default_factory=dict)


class Draft(Program, frozen=True):
    """A program that is only asked how long it takes, and not checked: one of many, most of which nothing will run.

    Whoever times it puts down in ``kept`` what is the same when it is asked for again, on whatever chip. Where other
    programs have instructions in common with it, ``stretches`` are all of its own, one behind the other.
    """

    kept: dict[Hashable, Any] = field(default_factory=dict)
    stretches: tuple[Stretch, ...] = ()

    def __post_init__(self) -> None:
        pass


def encode(instruction: Instruction) -> bytes:
    """Pack one instruction into its 256-byte word; raises `LoomError` when a value does not fit its field."""
    word = 0
    for name, read, low, high, offset in _reading(instruction.opcode.spec.format):
        value = read(instruction)
        if not low <= value <= high:
            raise _too_wide(instruction, name, value, high - low)
        word |= (value & high - low) << offset
    return word.to_bytes(WORD_BITS // 8, "little")


class FieldTooWide(LoomError):
    """A value that does not fit its field of an instruction's word.

    Parameters
    ----------
    text
        What it is.
    operator
        Number of the operator that the instruction is part of.
    is_address
        Whether the field is part of an address.
    """

    def __init__(self, text: str, operator: int = 0, *, is_address: bool = False) -> None:
        super().__init__(text)
        self.operator, self.is_address = operator, is_address


def _too_wide(instruction: Instruction, name: str, value: int, mask: int) -> FieldTooWide:
    text = f"{instruction.opcode.name.lower()}: {name} = {value} does not fit {mask.bit_length()} bits"
    return FieldTooWide(text, instruction.operator, is_address="." in name)


def _check_fields(instruction: Instruction, fitting: set[tuple[str, int]]) -> None:
    """Raise what `encode` would, without the word; ``fitting`` are addresses that do, by their places in memory.

    Instructions of a program have many of their addresses in common.
    """
    of = _fields_of(instruction.opcode.spec.format)
    values = of.together(instruction)
    if (
        all(map(le, of.lows, values))
        and all(map(le, values, of.highs))
        and all(low <= read(instruction) <= high for read, low, high in of.others)
    ):
        for name, fields in of.addresses:
            key = name, id(address := getattr(instruction, name))
            if key in fitting:
                continue
            if not all(low <= read(address) <= high for read, low, high in fields):
                break
            fitting.add(key)
        else:
            return
    for name, read, low, high, _ in _reading(instruction.opcode.spec.format):
        if not low <= (value := read(instruction)) <= high:
            raise _too_wide(instruction, name, value, high - low)


def unread_bits(instruction: Instruction) -> int:
    """A mask of the bits of an instruction's word that no tile reads: fields of other instructions, and reserved ones.

    The encoder leaves them zero, and `check_program` refuses a flag among them: whoever sets one means something by it.
    A tile has no circuit that looks at them: whatever stands there changes no cycle and no value.
    """
    read, mask, offset = _read_fields(instruction), 0, 0
    for bit_field in word_layout(instruction.opcode):
        if bit_field.name.partition(".")[0] not in read:
            mask |= (1 << bit_field.width) - 1 << offset
        offset += bit_field.width
    return mask | (1 << WORD_BITS) - (1 << offset)


def _read_fields(instruction: Instruction) -> set[str]:
    """Names of the fields that mean something, addresses as wholes."""
    opcode = instruction.opcode
    if opcode != Opcode.BARRIER and opcode.unit == Unit.SEQUENCER:
        return {"opcode", *opcode.spec.sizes, *(["m"] if opcode == Opcode.LOOP else [])}
    read = {"opcode", "unit", "wait", "release", "post", "first_wait", "last_post", "first", "last"}
    if opcode == Opcode.BARRIER:
        return read
    held = set(opcode.unit.spec.entry) - ({"k"} if opcode in TRANSFERS else set())
    read |= held | set(opcode.spec.sizes) | ({"a"} if "local" in held else set())
    read |= {"dtype"} if opcode.spec.format is Format.COMPUTE else set()
    return read | ({"accumulate", "overwrite"} if "add" in held and opcode.spec.adds(instruction) else set())


def decode(data: bytes) -> Instruction:
    """Unpack one 256-byte word; raises `LoomError` for an unknown opcode, enum value or set reserved bits."""
    if len(data) != WORD_BITS // 8:
        raise LoomError(f"an instruction has {WORD_BITS // 8} bytes (got {len(data)})")
    word = int.from_bytes(data, "little")
    opcode_value = word & ((1 << HEADER[0].width) - 1)
    try:
        opcode = Opcode(opcode_value)
    except ValueError:
        raise LoomError(f"unknown opcode {opcode_value}") from None
    values: dict[str, int] = {}
    offset = 0
    for bit_field in word_layout(opcode):
        value = (word >> offset) & ((1 << bit_field.width) - 1)
        if bit_field.signed and value >> (bit_field.width - 1):
            value -= 1 << bit_field.width
        values[bit_field.name] = value
        offset += bit_field.width
    if word >> offset:
        raise LoomError(f"{opcode.name.lower()}: reserved bits are set")
    known = (("dtype", len(DTYPES)), ("function", FUNCTIONS), ("unit", list(Unit)), ("weights", len(CODES)))
    for name, table in known:
        if values.get(name, 0) not in (range(table) if isinstance(table, int) else table):
            raise LoomError(f"{opcode.name.lower()}: unknown {name} {values[name]}")
    plain: dict[str, Any] = {f.name: values[f.name] for f in HEADER[4:]}
    return Instruction(
        opcode=opcode,
        unit=Unit(values["unit"]),
        dtype=DTYPES[values["dtype"]],
        function=FUNCTIONS[values["function"]],
        memory=_take_address(values, "memory"),
        a=_take_address(values, "a"),
        b=_take_address(values, "b"),
        c=_take_address(values, "c"),
        d=_take_address(values, "d"),
        pitch=values.get("pitch", 0),
        local_pitch=values.get("local_pitch", 0),
        rescale=values.get("rescale", 0),
        packing=_packing(values),
        narrow=values.get("narrow", 0),
        split=values.get("split", 0),
        **plain,
    )


def decode_program(data: bytes) -> tuple[Instruction, ...]:
    """Unpack a whole program."""
    size = WORD_BITS // 8
    if len(data) % size:
        raise LoomError(f"a program is a whole number of {size}-byte words (got {len(data)} bytes)")
    return tuple(decode(data[i : i + size]) for i in range(0, len(data), size))


class _Where(NamedTuple):
    """Names an instruction in an error's text."""

    number: int
    instruction: Instruction

    def __format__(self, spec: str) -> str:
        return f"instruction {self.number} ({self.instruction.opcode.name.lower()})"


def check(program: Program) -> None:
    """Refuse a malformed program; raises `LoomError` that names the instruction."""
    if len(program.semaphores) > SEMAPHORES:
        raise LoomError(f"a program has at most {SEMAPHORES} semaphores (got {len(program.semaphores)})")
    for semaphore in program.semaphores:
        if not 0 <= semaphore.initial <= SEMAPHORE_LIMIT:
            raise LoomError(f"semaphore {semaphore.name}: the initial count must be in 0..{SEMAPHORE_LIMIT}")
    depth, illegal = 0, Cause.ILLEGAL_INSTRUCTION
    fitting = set[tuple[str, int]]()
    posters: dict[int, tuple[UnitCode, str, int]] = {}
    waiters: dict[int, tuple[UnitCode, str, int]] = {}
    looked_at = set[tuple[int, UnitCode, str]]()
    for number, i in enumerate(program.instructions):
        where = _Where(number, i)
        if i.opcode == Opcode.LOOP:
            depth += 1
            if depth > LEVELS:
                raise IllegalProgram(
                    illegal, number, f"{where}: illegal instruction: loops are nested more than {LEVELS} deep"
                )
            if i.m < 1:
                raise IllegalProgram(
                    illegal, number, f"{where}: illegal instruction: a loop runs at least once (got {i.m})"
                )
        elif i.opcode == Opcode.NEXT:
            depth -= 1
            if depth < 0:
                raise IllegalProgram(
                    illegal, number, f"{where}: illegal instruction: closes a loop that was never opened"
                )
        elif i.opcode == Opcode.END and number != len(program.instructions) - 1:
            raise LoomError(f"{where}: the program goes on after its end")
        elif any(getattr(i, size) < 1 for size in i.opcode.spec.sizes):
            sizes = i.opcode.spec.sizes
            text = f"{', '.join(sizes[:-1])} and {sizes[-1]}" if len(sizes) > 1 else sizes[0]
            got = " x ".join(str(getattr(i, size)) for size in sizes)
            raise IllegalProgram(
                illegal, number, f"{where}: illegal instruction: {text} must be at least 1 (got {got})"
            )
        if (i.first | i.last | i.overwrite) >> depth:
            raise LoomError(f"{where}: a level mask names a loop that is not open here")
        for mask, table, how in (
            (i.wait | i.first_wait, waiters, "waited for"),
            (i.release, posters, "released"),
            (i.post | i.last_post, posters, "posted"),
        ):
            if not mask or (mask, i.unit, how) in looked_at:
                continue
            looked_at.add((mask, i.unit, how))
            for bit in set_bits(mask):
                if bit >= len(program.semaphores):
                    raise LoomError(f"{where}: semaphore {bit} is not declared")
                unit, verb, other = table.setdefault(bit, (i.unit, how, number))
                if (unit, verb) != (i.unit, how):
                    raise LoomError(
                        f"{where}: semaphore {program.semaphores[bit].name} is {how} by {i.unit.name.lower()} here and "
                        f"{verb} by {unit.name.lower()} at instruction {other}"
                    )
        if i.operator >= len(program.operators):
            raise LoomError(f"{where}: operator {i.operator} is not declared")
        _check_fields(i, fitting)
    if depth:
        raise LoomError(f"{depth} loop{'s are' if depth > 1 else ' is'} never closed")
    if not program.instructions or program.instructions[-1].opcode != Opcode.END:
        raise IllegalProgram(Cause.PROGRAM_SIZE, None, "program size: a program ends with END")


def set_bits(*masks: int) -> Iterator[int]:
    """Numbers of the bits that are set in any of these masks, from bit 0 up."""
    mask = 0
    for m in masks:
        mask |= m
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


Reader = Callable[[Instruction], int]


@cache
def _reading(kind: Format) -> tuple[tuple[str, Reader, int, int, int], ...]:
    """How to encode an instruction of a format: name, value, least and largest value and first bit of each field."""
    rows, offset = [], 0
    for field_ in LAYOUTS[kind]:
        low = -(1 << field_.width - 1) if field_.signed else 0
        rows.append((field_.name, _reader(field_.name), low, (1 << field_.width - field_.signed) - 1, offset))
        offset += field_.width
    return tuple(rows)


_Limits = tuple[Callable[[Any], int], int, int]
"""How to read a field, and its least and largest value."""


class _FormatFields(NamedTuple):
    """What `_reading` says, without places."""

    together: Callable[[Any], tuple[int, ...]]
    """Reads those of the instruction's own fields that are numbers, of which the least and largest values follow."""
    lows: tuple[int, ...]
    highs: tuple[int, ...]
    others: tuple[_Limits, ...]
    addresses: tuple[tuple[str, tuple[_Limits, ...]], ...]


@cache
def _fields_of(kind: Format) -> _FormatFields:
    """Fields of the instruction itself, and those of each of its addresses."""
    plain, others, addresses = list[tuple[str, int, int]](), list[_Limits](), dict[str, list[_Limits]]()
    for name, read, low, high, _ in _reading(kind):
        head, _, part = name.partition(".")
        if not part and head not in _CODED:
            plain.append((name, low, high))
        elif not part:
            others.append((read, low, high))
        elif part.startswith("stride"):
            addresses.setdefault(head, []).append((_stride(int(part[6:])), low, high))
        else:
            addresses.setdefault(head, []).append((attrgetter(part), low, high))
    names, lows, highs = zip(*plain, strict=True)
    every = tuple((head, tuple(fields)) for head, fields in addresses.items())
    return _FormatFields(attrgetter(*names), lows, highs, tuple(others), every)


_CODED = ("dtype", "function")
"""Fields that hold the code of what they name."""


def _stride(level: int) -> Callable[[Any], int]:
    return lambda address: int(address.strides[level])


def _reader(name: str) -> Reader:
    head, _, part = name.partition(".")
    if head == "dtype":
        return lambda i: DTYPES.index(i.dtype)
    if head == "function":
        return lambda i: i.function.code
    if part.startswith("stride"):
        address, level = attrgetter(head), int(part[6:])
        return lambda i: int(address(i).strides[level])
    return attrgetter(name)


def _power(group: int) -> int:
    """The exponent of the power of two that a group's rows are; one that no field holds of any other number."""
    power = group.bit_length() - 1
    return power if group > 0 and group & group - 1 == 0 and power not in (BY_ROWS, UNGROUPED) else 1 << GROUP_BITS


def _packing(values: dict[str, int]) -> Packing | None:
    """The format of packed weights that a word says."""
    dtype = CODES[values.get("weights", 0)]
    if dtype is None:
        if values.get("group", 0):
            raise LoomError(f"a group of {1 << values['group']} rows of weights that are not packed")
        return None
    if not scale_bits(dtype):
        if values["group"]:
            raise LoomError(f"a group of {1 << values['group']} rows of weights in {dtype.value}, which have no scales")
        return Packing(dtype, 0)
    if values["group"] == BY_ROWS and dtype in CACHE_SCALED:
        return Packing(dtype, 0, by_rows=True)
    return Packing(dtype, 0 if values["group"] == UNGROUPED else 1 << values["group"])


def _take_address(values: dict[str, int], name: str) -> Address:
    if f"{name}.base" not in values:
        return Address()
    return Address(
        base=values[f"{name}.base"],
        strides=tuple(values[f"{name}.stride{level}"] for level in range(LEVELS)),
        slot=values.get(f"{name}.slot", 0),
        parity=values.get(f"{name}.parity", 0),
        odd=values.get(f"{name}.odd", 0),
    )


def transfer_operands(i: Instruction) -> list[str]:
    """Shape and addresses of a transfer as listings have them."""
    return [f"{i.m}x{i.n}B", f"pitch {i.pitch}", f"mem[{shown(i.memory)}]", f"local[{shown(i.a)}]"]


def gather_operands(i: Instruction) -> list[str]:
    """Shape and addresses of a gather as listings have them."""
    return [*transfer_operands(i), f"indices[{shown(i.b)}]", f"of {i.k}"]


def compute_operands(i: Instruction, *shape: str) -> list[str]:
    """Shape, number format and addresses of a computation as listings have them."""
    return [*shape, i.dtype.value, f"a[{shown(i.a)}]", f"b[{shown(i.b)}]", f"c[{shown(i.c)}]"]


def shown(address: Address) -> str:
    """An address as listings have it."""
    text = f"{address.base:#x}" + "".join(f"+{s}*i{n}" for n, s in enumerate(address.strides) if s)
    if address.slot:
        text += f"^{address.slot:#x}" + ("'" if address.odd else "")
    return text


discover("siliconloom.arch.units")
_BARRIER = Opcode.BARRIER

__all__ = [
    "COMPUTES",
    "FUNCTIONS",
    "SEMAPHORE_LIMIT",
    "TRANSFERS",
    "UNIT_OF",
    "Address",
    "FieldTooWide",
    "Instruction",
    "Opcode",
    "Program",
    "Semaphore",
    "Unit",
    "check",
    "compute_operands",
    "decode",
    "decode_program",
    "encode",
    "gather_operands",
    "set_bits",
    "shown",
    "transfer_operands",
]

"""What the vector unit computes: how a function is registered, and what it costs in passes over its operand.

A function is a row of three tables that know nothing of each other: what it is stands here (`register_function`; the
functions of this package are in ``arch/functions``), what it computes in `sim.golden.vector`, and how a lane computes
it in `rtl.npu.ways`. Instruction set, assembler, simulator, golden model, vector unit and documents read these tables;
none of them names a function.

Rows are cut into blocks of as many columns as there are lanes; a slot is one block of one row. A row function (softmax,
a norm) makes ``passes`` over its slots and waits ``reductions`` times for values reduced over whole rows before the
next pass can begin. An element function streams all slots once, ``passes`` cycles each. Parameters are read
ahead: ``once`` bytes before everything, and ``setup`` lines ahead of each block where they differ from column to
column.

Three kinds of function have their work from the instruction's ``k``, or from their result. One that *chooses* the k
largest of each row makes k more passes before the others, each with a reduction of its own: every one of them finds
the next element of every row, the largest of those that come behind the one found before; of equal ones the lower
column comes first. Where there are no more than k columns all are chosen, and there is no such pass. One that *weighs*
has k rows of its first operand for each row of results, and a cycle for each of them on every slot. One that *indexes*
chooses one element, and its result is where that stands: `INDEX_BYTES` for each row.

Two kinds share a softmax whose columns come tile by tile (FlashAttention, Dao et al., 2022). One that *carries* keeps
each row's peak and total in the unit's row memory: an instruction that adds (`accumulate`, `overwrite`) goes on from
those that are there, another one begins anew. Its results are powers below the row's peak, not yet divided, and it
leaves by how much the peak has risen, for the product that takes them (`rescale`). One that *divides* takes the sums of
all these products over the totals of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import LoomError
from siliconloom.arch.registry import Live, Registry, discover

if TYPE_CHECKING:  # what a workload is needs no arrays
    import numpy as np
    from numpy.typing import NDArray

Count = TypeVar("Count", int, "NDArray[np.int64]")
"""One size, or an array of sizes, of which the same is asked."""
INDEX_BYTES = 4
"""Bytes of an index, a whole number without sign, the low byte first: of the row of a table that a gather takes, where
they lie one after the other; of a column that a function has found, where each begins a row."""

FUNCTION_BITS = 6
"""Bits of a function's code in an instruction."""
SPLIT_BITS = 2
"""Bits of the power of two by which lines of sums are divided."""
ROW_LIMIT = 256
"""Rows of one row function: each has a line of the unit's row memory."""
COLUMN_LIMIT = 1 << 15
"""Columns of one row function."""
INDEX_LIMIT = 1 << 18
"""Columns of a row in which a place is looked for: a vocabulary's."""
TOTAL_BITS = 39
"""Bits of the total of a row that is carried, in 1/2^15."""
RISE_LIMIT = 63
"""The most by which a row's peak is said to have risen: of a sum of 32 bits it leaves nothing."""
INPUT_LIMIT = 256
"""Rows that one row of a weighted sum is made of: sums of so many products of bytes have 24 bits."""
SCALAR_BYTES = 8
TABLE_BYTES = 256
COLUMN_LINES = 8

SECOND_LIMIT = 2
"""Bytes of a second operand for each element of the first, at most."""


class Parameters(StrEnum):
    """A group of parameters, which a function finds at ``d``."""

    SCALARS = "scalars"
    """Two int16 multipliers m0 and m1, a shift, three bytes unused; the rest of the line is skipped.

    In floating point: m0 and m1 in fp32; where elements have two bytes eight more are unused."""
    TABLE = "table"
    """256 bytes; byte ``a & 255`` is the result for a. In floating point no function has one."""
    COLUMNS = "columns"
    """Per block of columns 8 lines: the four bytes of the int32 biases, low first, the two of the int16 multipliers,
    the shifts (0..63), one unused.

    In floating point: lines of the parts of the fp32 biases, as long as elements, low ones first, then of those of the
    fp32 multipliers: as many as `column_lines` says."""


def column_lines(dtype: DataType) -> int:
    """Lines of the parameters of a block of columns: in every format eight bytes a column.

    The unit takes `COLUMN_LINES` cycles for them, whatever the format: so long the block before needs its own.
    """
    return COLUMN_LINES if dtype.is_integer else 8 * COLUMN_LINES // dtype.bits


ONCE = {Parameters.SCALARS: SCALAR_BYTES, Parameters.TABLE: TABLE_BYTES}
"""Bytes of the groups that are read before everything."""


class VectorCost(Struct, frozen=True):
    """What a function takes of the unit.

    Parameters
    ----------
    passes
        Over the operand, or cycles per slot.
    reductions
        Waits for values reduced over whole rows.
    setup, column_lines
        Cycles ahead of each block of columns, in which its parameters are read; how many lines these are.
    once
        Bytes of each group of parameters that is read before everything; a group begins on a new line.
    serial
        One element a cycle, or of several rows together one each (`serial_slots`).
    chooses, weighs, indexes
        See `FunctionSpec`.
    apart
        Cycles from one weight of a weighted sum to the next.
    each, recurs
        See `FunctionSpec`.
    element
        Bytes of an element.
    row_cycles
        Cycles on each group of rows beside those on its slots, whatever its columns: a reduction over lanes.
    kernels
        Programs that compute it one after the other, each of which is launched.
    """

    passes: int = 1
    reductions: int = 0
    setup: int = 0
    column_lines: int = 0
    once: tuple[int, ...] = ()
    serial: bool = False
    chooses: bool = False
    weighs: bool = False
    apart: int = 1
    indexes: bool = False
    each: int = 0
    recurs: bool = False
    element: int = 1
    row_cycles: int = 0
    kernels: int = 1

    @property
    def by_row(self) -> bool:
        return self.reductions > 0

    def slot_cycles(self, lanes: int, inputs: int = 1) -> int:
        """Cycles that all passes but those that choose spend on one block of one row, with ``inputs`` as ``k``."""
        if self.each:
            return self.each * inputs + self.passes
        return lanes if self.serial else inputs * self.apart if self.weighs else self.passes

    def serial_slots(self, rows: Count, lanes: int, together: int) -> Count:
        """Cycles on one block of columns of so many rows, of which the unit takes some ``together``, one by one.

        Together means that they are read one a cycle, and then each column of the block takes one.
        """
        return rows * lanes if together == 1 else rows + -(-rows // together) * lanes

    def rounds(self, cols: Count, inputs: int) -> Count:
        """Passes that choose ``inputs`` of so many columns: one for each, none where all are chosen."""
        return (cols > inputs) * inputs if self.chooses else 0 * cols

    def index_lines(self, lanes: int) -> int:
        """Lines of results that each row has beside its blocks."""
        return -(-INDEX_BYTES // (lanes * self.element)) if self.indexes else 0

    def once_lines(self, lanes: int) -> int:
        """Lines of parameters that are read before everything."""
        return sum(-(-size // lanes) for size in self.once) if self.once else 0

    def parameter_bytes(self, cols: int, lanes: int) -> int:
        """Bytes of all parameters for ``cols`` columns, of elements of one byte; as often as much of longer ones."""
        return lanes * (self.once_lines(lanes) + self.column_lines * -(-cols // lanes))


class FunctionSpec(Struct, frozen=True, kw_only=True, dict=True):
    """What a vector function is, for everybody who does not compute it.

    Parameters
    ----------
    name
        In programs, results and documents.
    code
        In instructions, below 2^`FUNCTION_BITS`; nobody else's.
    result
        What it computes, for ``docs/npu.md``.
    passes, reductions
        See `VectorCost`.
    parameters
        Groups of parameters, in the order in which they lie at ``d``.
    from_sums
        The first operand lies in the accumulator.
    second
        Bytes of a second operand for each element of the first; 0 without one.
    masks
        With ``k`` = 2, row r sees columns up to ``b`` + r, and ``b`` is no address; one below zero wraps, as addresses
        do (`isa.last_seen`).
    transposes
        Element (r, c) goes to row c, column r, one element a cycle.
    chooses
        ``k`` elements of each row count, the others are none of it; at least one.
    weighs
        Rows r·k to r·k + k - 1 of the first operand make row r of the result, each of them times a byte of row r of
        the second operand, which has k columns; at least one and at most `INPUT_LIMIT`.
    indexes
        The result has `INDEX_BYTES` a row: a column of the operand, without sign, low byte first.
    reduces
        The result has one element a row.
    carries
        The peak and the total of each row are kept in the slot that its results are in, and go on from those in the
        other slot where it adds. Of that slot a product takes what the peaks have risen by (`Instruction.rescale`).
    each
        Cycles that each of ``k`` states, or taps, adds to a slot's ``passes``; ``k`` is at least one.
    recurs
        Rows go on from what the row before has left: all slots of a row come before those of the next one, which
        begin the unit's latency after them at the soonest.
    keeps
        It passes its operand on, and its results may be kept in a format of fewer bits (`Instruction.packing`).
    divides
        Sums over the totals of their rows, at most `ROW_LIMIT`, that a function that carries has left in the slot that
        ``b`` is in, which is no address.
    circuit
        There is a circuit and a golden function. Without them a function can be timed, and nothing else.
    floats
        What it computes in floating point, where there are both for tiles that do; empty where there are none.
    float_parameters
        Groups of parameters in floating point, where they are others.
    epsilon
        In floating point ``k`` is the bf16 pattern of a number that is added to a row's mean square; 0 for none.
    activation
        The real function that a table holds.
    """

    name: str
    code: int
    result: str
    passes: int = 1
    reductions: int = 0
    parameters: tuple[Parameters, ...] = ()
    from_sums: bool = False
    second: int = 0
    masks: bool = False
    transposes: bool = False
    chooses: bool = False
    weighs: bool = False
    indexes: bool = False
    reduces: bool = False
    carries: bool = False
    divides: bool = False
    each: int = 0
    recurs: bool = False
    keeps: bool = False
    circuit: bool = True
    floats: str = ""
    float_parameters: tuple[Parameters, ...] | None = None
    epsilon: bool = False
    activation: Callable[[float], float] | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name != self.name.lower():
            raise LoomError(f"a vector function's name is a lower-case identifier (got {self.name!r})")
        if not 0 <= self.code < 1 << FUNCTION_BITS:
            raise LoomError(f"vector function {self.name}: a code has {FUNCTION_BITS} bits (got {self.code})")
        for parameters in (self.parameters, self.float_parameters or ()):
            if parameters not in PARAMETER_ORDERS:
                raise LoomError(
                    f"vector function {self.name}: parameters are columns, or scalars before a table "
                    f"(got {', '.join(parameters)})"
                )
        # the circuit makes two passes around one reduction, else a beat for each line of the second operand; places of
        # elements are written behind one pass
        built = (1 if self.indexes else 2, 1) if self.reductions else (max(self.second, 1), 0)
        if self.circuit and (self.passes, self.reductions) != built:
            raise LoomError(
                f"vector function {self.name}: the unit's circuit makes {built[0]} passes and {built[1]} reductions "
                f"for such a function (got {self.passes} and {self.reductions})"
            )
        if (self.chooses or self.indexes) and (not self.reductions or self.from_sums):
            raise LoomError(f"vector function {self.name}: what chooses, or finds a place, reduces rows of bytes")
        if self.weighs and (self.second or self.reductions or self.from_sums or self.transposes):
            raise LoomError(
                f"vector function {self.name}: what weighs has rows of bytes and one byte of weight for each of them, "
                "and neither a second operand, sums, a reduction nor a transpose"
            )
        if self.carries and (not self.from_sums or not self.reductions or self.chooses):
            raise LoomError(f"vector function {self.name}: what carries a row's peak and total reduces rows of sums")
        if self.divides and (not self.from_sums or self.reductions or self.parameters != (Parameters.COLUMNS,)):
            raise LoomError(
                f"vector function {self.name}: what divides by rows' totals has sums, parameters of columns, and no "
                "reduction of its own"
            )
        if self.circuit and (self.each or self.recurs):
            raise LoomError(f"vector function {self.name}: no circuit has states or taps, or goes on from row to row")
        if self.epsilon and (self.chooses or self.weighs or self.masks):
            raise LoomError(f"vector function {self.name}: k is an epsilon, or a count, or says that rows are masked")
        if self.circuit and self.second > SECOND_LIMIT:
            raise LoomError(
                f"vector function {self.name}: the second operand has at most {SECOND_LIMIT} bytes for each element "
                f"of the first (got {self.second})"
            )

    @cached_property
    def cost(self) -> VectorCost:
        """What it takes of the unit in integers."""
        return self._cost(DataType.INT8)

    @cached_property
    def _float_costs(self) -> dict[int, VectorCost]:
        """What it takes in floating point, by the bits of a format."""
        return {dtype.bits: self._cost(dtype) for dtype in DataType if not dtype.is_integer and dtype.bits >= 8}

    @cached_property
    def text(self) -> str:
        """All that programs and their times depend on, for keys of what is kept; the real function is none of it."""
        return repr(replace(self, activation=None))

    def parameters_in(self, dtype: DataType) -> tuple[Parameters, ...]:
        """Groups of parameters in a format, in the order in which they lie at ``d``."""
        own = None if dtype.is_integer else self.float_parameters
        return self.parameters if own is None else own

    def cost_in(self, dtype: DataType) -> VectorCost:
        """What it takes of the unit in a format."""
        return self.cost if dtype.is_integer else self._float_costs[dtype.bits]

    def _cost(self, dtype: DataType) -> VectorCost:
        parameters = self.parameters_in(dtype)
        return VectorCost(
            self.passes,
            self.reductions,
            setup=COLUMN_LINES if Parameters.COLUMNS in parameters else 0,
            column_lines=column_lines(dtype) if Parameters.COLUMNS in parameters else 0,
            once=tuple(ONCE[each] for each in parameters if each in ONCE),
            serial=self.transposes,
            chooses=self.chooses,
            weighs=self.weighs,
            indexes=self.indexes,
            each=self.each,
            recurs=self.recurs,
            element=1 if dtype.is_integer else dtype.bits // 8,
        )

    @property
    def reads_second(self) -> bool:
        """Whether there is a second operand, of whatever shape."""
        return self.second > 0 or self.weighs

    @property
    def uses_rows(self) -> bool:
        """Whether each row has a line of the unit's row memory."""
        return self.cost.by_row or self.divides

    @property
    def column_limit(self) -> int:
        """Columns of one row of a row function."""
        return INDEX_LIMIT if self.indexes else COLUMN_LIMIT

    def result_cols(self, cols: int, dtype: DataType = DataType.INT8) -> int:
        """Columns of the result of an operand of so many."""
        return INDEX_BYTES // self.cost_in(dtype).element if self.indexes else 1 if self.reduces else cols


PARAMETER_ORDERS = (
    (),
    (Parameters.SCALARS,),
    (Parameters.TABLE,),
    (Parameters.SCALARS, Parameters.TABLE),
    (Parameters.COLUMNS,),
)
"""Groups of parameters that go together."""


class _ByName(type):
    """Registered functions are attributes of `VectorFunction` by their names in capitals, and its members in code."""

    def __getattr__(cls, name: str) -> VectorFunction:
        raise AttributeError(f"no vector function {name.lower()} is registered")

    def __iter__(cls) -> Iterator[VectorFunction]:
        return iter(sorted(_FUNCTIONS.values(), key=lambda each: each.spec.code))

    def __len__(cls) -> int:
        return len(_FUNCTIONS)

    def __contains__(cls, name: object) -> bool:
        return name in _FUNCTIONS


class VectorFunction(str, metaclass=_ByName):
    """A registered function: its name, with all that its `FunctionSpec` says. There is one object of each.

    ``VectorFunction("add")`` finds the function of that name and raises `ValueError` when there is none.
    """

    spec: FunctionSpec

    def __new__(cls, name: str) -> VectorFunction:
        found = _FUNCTIONS.get(name)
        if found is None:
            raise ValueError(f"{name!r} is not a vector function; there are {', '.join(_FUNCTIONS)}")
        return found

    def __repr__(self) -> str:
        return f"<VectorFunction.{self.name}: {self.value!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return VectorFunction, (self.value,)

    @property
    def value(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def name(self) -> str:
        """Its name in capitals: that of its attribute, and of its constant in C."""
        return self.spec.name.upper()

    @property
    def code(self) -> int:
        """Its number in instructions."""
        return self.spec.code


_FUNCTIONS: Registry[str, VectorFunction] = Registry("vector function")


def register_function(spec: FunctionSpec) -> VectorFunction:
    """Add a function to those that programs may use; raises `LoomError` when its name or its code is taken."""
    if spec.code in FUNCTIONS and spec.name not in _FUNCTIONS:
        raise LoomError(f"vector function {spec.name}: its code {spec.code} is that of {FUNCTIONS[spec.code].value}")
    function = str.__new__(VectorFunction, spec.name)
    function.spec = spec
    _FUNCTIONS.add(spec.name, function)
    setattr(VectorFunction, function.name, function)
    return function


def remove_function(function: VectorFunction) -> None:
    """Take a function back; raises `LoomError` when it is not registered."""
    _FUNCTIONS.remove(function.value)
    delattr(VectorFunction, function.name)


class _Codes(Container[int]):
    """The registered functions by their codes."""

    def __getitem__(self, code: int) -> VectorFunction:
        found = next((each for each in _FUNCTIONS.values() if each.code == code), None)
        if found is None:
            raise IndexError(f"no vector function has the code {code}")
        return found

    def __contains__(self, code: object) -> bool:
        return any(each.code == code for each in _FUNCTIONS.values())

    def index(self, function: VectorFunction) -> int:
        """The code of ``function``."""
        return function.code


FUNCTIONS = _Codes()
"""Functions by their codes."""


def functions_with(condition: Callable[[FunctionSpec], bool]) -> Live[VectorFunction]:
    """The registered functions whose spec meets a condition, in the order of their codes; asked anew each time."""
    return Live(lambda: iter(VectorFunction), lambda function: condition(function.spec))


BUILT = functions_with(lambda spec: spec.circuit)
"""Functions that have a circuit."""


def built_in(dtype: DataType) -> Live[VectorFunction]:
    """Functions that have a circuit in tiles that compute in a format."""
    return BUILT if dtype.is_integer else BUILT_IN_FLOATS


BUILT_IN_FLOATS = functions_with(lambda spec: spec.circuit and bool(spec.floats))
"""Functions that have a circuit in tiles that compute in floating point."""
FROM_SUMS = functions_with(lambda spec: spec.circuit and spec.from_sums)
"""Functions whose first operand lies in the accumulator."""


def vector_cost(function: VectorFunction, dtype: DataType = DataType.INT8) -> VectorCost:
    """What ``function`` takes of the unit in a format."""
    return function.spec.cost_in(dtype)


def function_table(dtype: DataType = DataType.INT8) -> str:
    """The functions of tiles that compute in a format as a table of Markdown, which ``docs/npu.md`` shows for int8."""
    lines = ["| function | code | second operand | parameters | result |", "|---|---|---|---|---|"]
    size = 1 if dtype.is_integer else dtype.bits // 8
    for function in VectorFunction if dtype.is_integer else sorted(built_in(dtype), key=lambda each: each.code):
        spec = function.spec
        second = "mask" if spec.masks else f"{spec.second * size} B an element" if spec.second else "none"
        second = f"{size if size > 1 else ''} k B a row".strip() if spec.weighs else second
        result = spec.result if dtype.is_integer else spec.floats or spec.result
        if not spec.circuit:
            result += "; timed, no circuit"
        groups = ", ".join(spec.parameters_in(dtype)) or "none"
        lines.append(f"| {spec.name} | {spec.code} | {second} | {groups} | {result} |")
    return "\n".join(lines)


discover("siliconloom.arch.functions")

"""What a verification found: RTL beside its models, one record, whatever the machine is.

Every kind of machine has the same record (`Verified`): what was asked, cases with cycles and values of both sides,
totals. What only one kind has stands in a section of its own. A record cannot contradict itself: differences, totals
and ``passed`` are checked against the cases. A key is never renamed and never changes its unit within a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, model_validator

from siliconloom.arch.datatype import DataType
from siliconloom.arch.result import ResultSection

SCHEMA: Literal["siliconloom.verification/6"] = "siliconloom.verification/6"
COUNTED = ("folds", "instructions", "commands", "messages")
"""What cases count of their work, each where it has it."""


class VerifiedPart(ResultSection):
    """A part of the record: it has these keys and no others, and does not change."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class AskedOfRtl(VerifiedPart):
    """Everything that was asked, so that the same can be asked again, and what answered."""

    machine: str = Field(description="name of the chip or system")
    machine_digest: str = Field(
        description="SHA-256 of its description and of its chips', overrides included, as in a result"
    )
    overrides: dict[str, str] = Field(description="key paths and values of --set")
    seed: int = Field(description="of the random work")
    simulator: Literal["icarus", "verilator"] = Field(description="what ran the Verilog")
    cases: int | None = Field(description="random cases of each sort of work; none of an npu tile")
    programs: int | None = Field(description="random programs of an npu tile; none of others, and of a workload")
    workload: str | None = Field(default=None, description="whose program was run, where one was given")
    liberty: str | None = Field(default=None, description="library in whose cells the design ran, as a netlist")
    tools: dict[str, str] = Field(description="versions of the simulator and of what wrote and drove the Verilog")


class Seen(VerifiedPart):
    """One event on one side."""

    cycle: int = Field(description="in which it happened, or began")
    end: int | None = Field(default=None, description="last cycle of a fold; of an instruction the one after it")
    what: str | None = Field(default=None, description="what it was, where that is not the same on both sides")

    def __str__(self) -> str:
        last = "" if self.end is None else f" to {self.end:,}"
        return f"{self.cycle:,}{last}" + (f" {self.what}" if self.what else "")


class Moment(VerifiedPart):
    """An event on both sides; a side on which there is none has nothing."""

    number: int = Field(description="place in the order of its stream")
    model: Seen | None
    rtl: Seen | None


class Divergence(VerifiedPart):
    """The earliest event that the RTL and the model do not have in common, and those around it."""

    stream: str = Field(description="what is counted: vector execution, command, fold, delivered flit, ...")
    number: int = Field(description="place of the first event that differs in the order of its stream")
    instruction: str | None = Field(description="instruction that was executed, as text; none of other streams")
    around: tuple[Moment, ...] = Field(description="events of the same stream before and after it, itself among them")

    def lines(self) -> list[str]:
        """The one text for it: what differs first, then both sides of what is around it, one event a line."""
        first = f"first difference: {self.stream} {self.number:,}"
        found = [first + (f", instruction {self.instruction}" if self.instruction else "")]
        width = max((len(str(m.model)) for m in self.around if m.model), default=1)
        for moment in self.around:
            model, rtl = (str(side) if side else "-" for side in (moment.model, moment.rtl))
            here = "   <--" if moment.number == self.number else ""
            found.append(f"  {moment.number:>5,}  model {model:<{width}}   RTL {rtl}{here}")
        return found


class Case(VerifiedPart):
    """One piece of work on the RTL and on the models.

    A ``stalled`` case has random waits that the models do not know: its values are compared, its cycles are not.
    """

    name: str
    work: str = Field(description="gemms, program, macros, packets, collective or block")
    stalled: bool = Field(description="streams or memory wait at random: model_cycles, difference, cycles_equal: none")
    words: int | None = Field(default=None, description="of the program's encoding in instructions")
    folds: int | None = Field(default=None, description="loads of an array and what is streamed through each")
    instructions: int | None = Field(default=None, description="executed, each execution in a loop counted")
    commands: int | None = Field(default=None, description="of the DRAM channel, the model's")
    messages: int | None = Field(default=None, description="packets of a link, chunks of a collective")
    rtl_cycles: int
    model_cycles: int | None
    difference: int | None = Field(description="cycles that the RTL took longer")
    times_compared: int = Field(description="cycles of single events that were held against the model's")
    cycles_equal: bool | None = Field(description="all of them, the total and all counters")
    bytes_compared: int = Field(description="bytes of results or memory that were held against the golden values")
    values_equal: bool = Field(description="all of them, and the work came to its end")
    passed: bool
    divergence: Divergence | None = Field(description="first event whose cycle differs")
    value_errors: tuple[str, ...] = Field(description="what differs in values, in words; the first few")
    cycle_errors: tuple[str, ...] = Field(description="what differs in cycles beside the divergence; the first few")

    def differences(self) -> list[str]:
        """All that differs, one a line; lines that belong to the one before begin with a space."""
        return [*self.value_errors, *self.cycle_errors, *(self.divergence.lines() if self.divergence else ())]

    @model_validator(mode="after")
    def _agrees(self) -> Case:
        if self.stalled != (self.model_cycles is None) or self.stalled != (self.cycles_equal is None):
            raise ValueError("model_cycles and cycles_equal are none where the case is stalled, and only there")
        if self.difference != (None if self.model_cycles is None else self.rtl_cycles - self.model_cycles):
            raise ValueError("difference must be rtl_cycles - model_cycles")
        if self.values_equal != (not self.value_errors):
            raise ValueError("value_errors must say which values differ")
        if self.difference and self.cycles_equal:
            raise ValueError("cycles_equal must be false where the totals differ")
        if (self.cycles_equal is False) != bool(self.cycle_errors or self.divergence):
            raise ValueError("divergence and cycle_errors must say which cycles differ")
        if self.passed != (self.values_equal and self.cycles_equal is not False):
            raise ValueError("passed must say whether values and cycles are equal")
        return self


class NamedGemm(VerifiedPart):
    """C[m,n] = A[m,k] B[k,n]."""

    m: int
    n: int
    k: int


class GemmWork(VerifiedPart):
    """Products that run back to back on an array."""

    gemms: tuple[NamedGemm, ...]
    operands: DataType
    stall: dict[str, float] = Field(description="of each stream, the chance that a beat waits a cycle; none: no waits")


class VerifiedMacro(VerifiedPart):
    """A macro of a PIM channel, as `arch.pim.Macro`."""

    kind: str
    bank: int
    row: int
    rounds: int
    chunks: int
    segments: int
    columns: int
    column: int


class MacroWork(VerifiedPart):
    """Macros of a PIM channel."""

    macros: tuple[VerifiedMacro, ...]
    gemvs: int
    transfers: int = Field(description="macros that read or write")
    refreshes: int = Field(description="refresh commands among the commands")


class LinkWork(VerifiedPart):
    """What wires did to a case, and what a block of whole chips took."""

    faults: int = Field(description="cycles with wrong bits on a wire until the end")
    retries: int = Field(description="times that senders went back, in the RTL")
    tile_cycles: int | None = Field(default=None, description="of a block: the slowest tile's program alone")
    sequential_cycles: int | None = Field(
        default=None, description="of a block: with the collective after the last store, instead of chunk by chunk"
    )


class ArrayCase(Case):
    """Products on an array."""

    work: Literal["gemms"] = "gemms"
    folds: int
    array: GemmWork


class NpuCase(Case):
    """A program on an npu tile."""

    work: Literal["program"] = "program"
    words: int
    instructions: int


class PimCase(Case):
    """Macros on a PIM tile."""

    work: Literal["macros"] = "macros"
    commands: int
    pim: MacroWork


class LinkCase(Case):
    """Packets over a link, a collective of ring engines, or a block of whole chips."""

    work: Literal["packets", "collective", "block"]
    messages: int
    link: LinkWork


class Totals(VerifiedPart):
    """Sums over all cases."""

    cases: int
    passed: int = Field(description="cases that passed")
    timed: int = Field(description="cases whose cycles were compared")
    folds: int | None
    instructions: int | None
    commands: int | None
    messages: int | None
    rtl_cycles: int
    times_compared: int
    bytes_compared: int


class Seconds(VerifiedPart):
    """Wall time on this machine, in seconds."""

    total_s: float
    build_s: float = Field(description="of which the simulator's translation of the Verilog")
    run_s: float = Field(description="of which simulation")


class Verified(VerifiedPart):
    """The record: what every kind of machine has."""

    schema_: Literal["siliconloom.verification/6"] = Field(default=SCHEMA, alias="schema")
    kind: str = Field(description="what was built: array, npu, pim, or link (a ring of chips)")
    version: str
    asked: AskedOfRtl
    verified: str = Field(description="what was RTL, and how it was driven")
    behavioural: str | None = Field(default=None, description="what was a model in the bench, where that is not memory")
    time: Seconds
    passed: bool = Field(description="whether every case did")
    totals: Totals
    cases: tuple[Case, ...] = Field(min_length=1)
    notes: tuple[str, ...] = Field(description="what was left out, and why")

    @model_validator(mode="after")
    def _agrees(self) -> Verified:
        if self.totals != totals_of(self.cases):
            raise ValueError("totals must be those of the cases")
        if self.passed != all(case.passed for case in self.cases):
            raise ValueError("passed must say whether every case did")
        return self

    def as_dict(self) -> dict[str, Any]:
        """Plain data under the keys of the schema."""
        return self.model_dump(mode="json", by_alias=True)


class ArrayShape(VerifiedPart):
    """The array."""

    rows: int
    cols: int
    dataflow: str


class RingShape(VerifiedPart):
    """The ring, and the shape of the block that its chips compute together."""

    chips: int
    chip: str
    tokens: int
    hidden: int = Field(description="columns of the block's result")
    inner: int = Field(description="hidden units of all chips")


class VerifiedArray(Verified):
    """A systolic array with its operand streams."""

    kind: Literal["array"] = "array"
    array: ArrayShape
    cases: tuple[ArrayCase, ...] = Field(min_length=1)


class VerifiedNpu(Verified):
    """A whole npu tile, run by programs."""

    kind: Literal["npu"] = "npu"
    cases: tuple[NpuCase, ...] = Field(min_length=1)


class VerifiedPim(Verified):
    """A whole PIM tile, run by macros."""

    kind: Literal["pim"] = "pim"
    cases: tuple[PimCase, ...] = Field(min_length=1)


class VerifiedLink(Verified):
    """Links, ring engines, and a ring of whole chips."""

    kind: Literal["link"] = "link"
    ring: RingShape
    cases: tuple[LinkCase, ...] = Field(min_length=1)


Record = Annotated[VerifiedArray | VerifiedNpu | VerifiedPim | VerifiedLink, Field(discriminator="kind")]


def totals_of(cases: Sequence[Case]) -> Totals:
    """Sums over cases; of what no case counts there is none."""

    def total(values: Iterable[int | None]) -> int | None:
        found = [value for value in values if value is not None]
        return sum(found) if found else None

    return Totals(
        cases=len(cases),
        passed=sum(case.passed for case in cases),
        timed=sum(not case.stalled for case in cases),
        **{name: total(getattr(case, name) for case in cases) for name in COUNTED},
        rtl_cycles=sum(case.rtl_cycles for case in cases),
        times_compared=sum(case.times_compared for case in cases),
        bytes_compared=sum(case.bytes_compared for case in cases),
    )


@cache
def _adapter() -> TypeAdapter[Verified]:
    return TypeAdapter(Record)


def read_verified(data: Mapping[str, Any]) -> Verified:
    """The record that ``loom verify --json`` wrote; raises pydantic's `ValidationError` for what is none."""
    return _adapter().validate_python(data)


def verified_schema() -> dict[str, Any]:
    """JSON Schema of the record: every key that is written is required."""
    return {"title": SCHEMA, **_adapter().json_schema(by_alias=True, mode="serialization")}

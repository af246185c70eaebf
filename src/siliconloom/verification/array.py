"""Products on the RTL of a systolic array against NumPy (values) and the simulator's timing (cycles of each fold)."""

from __future__ import annotations

import random
from pathlib import Path

from msgspec.structs import replace

from siliconloom.arch import Chip, SystolicArray
from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.isa import Instruction, Opcode, Program
from siliconloom.arch.tile import SystolicTile
from siliconloom.arch.verified import ArrayCase, ArrayShape, GemmWork, NamedGemm, Seen, VerifiedArray
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.rtl.array.arithmetic import operand_type
from siliconloom.rtl.array.folds import ArrayProduct, CaseResult, FoldCase, FoldTime, operands
from siliconloom.rtl.bench.runner import Spent, run_cases
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.chip.engine import duration
from siliconloom.sim.timing.systolic import gemm_folds, operand_folds, stall_free_schedule
from siliconloom.verification.netlist import in_cells
from siliconloom.verification.parity import Findings, Parity, ParityStream, verilog

BEATS = 1500
"""Most moving beats in a case: keeps a bench within seconds."""
MOST_CYCLES, MOST_PRODUCTS = 300_000, 10_000
"""What a bench of streams carries of a workload: every beat of it lies in a file."""


class ArrayParity(Parity, kw_only=True):
    """What comparing one sequence of products showed."""

    result: CaseResult

    def case(self) -> ArrayCase:
        """Entry of the record."""
        case = self.result.case
        work = GemmWork(
            gemms=tuple(NamedGemm(m=g.m, n=g.n, k=g.k) for g in case.gemms), operands=case.dtype, stall=case.stall
        )
        return ArrayCase(**self.common(), folds=len(case.schedule), array=work)


def compare(result: CaseResult) -> ArrayParity:
    """Hold what an array did against NumPy's values and, where nothing stalls, the predicted cycles of every fold."""
    case = result.case
    parity = ArrayParity(
        name=", ".join(f"{g.m}x{g.n}x{g.k}" for g in case.gemms), stalled=bool(case.stall), result=result
    )
    parity.value_errors += result.value_errors
    parity.bytes_compared = result.value_bytes
    parity.cycles(result.cycles, case.schedule[-1].last_output + 1)
    if not parity.stalled:
        parity.hold([ParityStream("fold", case.schedule, result.folds, _seen, times=2)])
    return parity


def _seen(fold: FoldTime) -> Seen:
    return Seen(cycle=fold.first_output, end=fold.last_output)


def verify_array(
    chip: Chip,
    array: SystolicArray,
    *,
    seed: int,
    simulator: str,
    cases: int,
    spent: Spent,
    liberty: Path | None = None,
) -> Findings:
    """Sequences of products on the RTL of ``chip``, which has this ``array``; in cells, if there is a library of them.

    Half of them run back to back without stalls, compared cycle for cycle; the others stall every stream at random and
    are compared by value.
    """
    bundle, made = in_cells(build_rtl(chip), liberty, spent), random_cases(array, seed, cases)
    spent.predicted = sum(case.schedule[-1].last_output + 1 for case in made)
    with verilog(bundle) as (sources, folder):
        results = run_cases(
            array, sources, bundle.top, bundle.ports, made, simulator=simulator, folder=folder, spent=spent
        )
    return Findings(
        VerifiedArray,
        f"{bundle.sidecar['contains']}, by products (m x n x k)",
        [compare(result).case() for result in results],
        sections={"array": ArrayShape(rows=array.rows, cols=array.cols, dataflow=array.dataflow)},
    )


def products_of(program: Program) -> list[Instruction]:
    """The products of a program for a bare array, one for each execution, in their order."""
    found: list[Instruction] = []
    opened: list[tuple[int, int]] = []
    for i in program.instructions:
        if i.opcode is Opcode.LOOP:
            opened.append((len(found), i.m))
        elif i.opcode is Opcode.NEXT:
            start, times = opened.pop()
            body = found[start:]
            if len(found) + len(body) * (times - 1) > MOST_PRODUCTS:
                raise NotSupported(f"more than {MOST_PRODUCTS:,} products in the bench of a bare array")
            found += body * (times - 1)
        elif i.opcode is Opcode.MATMUL:
            found.append(i)
    return found


def verify_list(
    mapped: MappedWorkload, *, seed: int, simulator: str, spent: Spent, liberty: Path | None = None
) -> Findings:
    """Run the products of a workload on a bare array, with random operands, as ``loom sim`` times them: back to back.

    Raises
    ------
    NotSupported
        For a format that the circuit does not compute in, and for more work than a bench of streams carries.
    LoomError
        When the simulator is missing.
    """
    chip, graph = mapped.chip, mapped.graph
    assert isinstance(chip.tile, SystolicTile)
    array, own = chip.tile.array, operand_type(chip.tile.array)
    work = products_of(mapped.program)
    dtypes = {i.dtype for i in work}
    dtype = max(dtypes, key=lambda each: each.bits)
    if not all(each == own or (each.is_integer and own.is_integer and each.bits <= own.bits) for each in dtypes):
        raise NotSupported(
            f"RTL of {graph.name} in {', '.join(sorted(dtypes))}; the array of {chip.name} has {own.value}"
        )
    case = scheduled(
        array, FoldCase(tuple(ArrayProduct(i.m, i.n, i.k) for i in work), seed, dtype, sigma=array.operand_sigma)
    )
    cycles = case.schedule[-1].last_output + 1
    if cycles > MOST_CYCLES:
        raise NotSupported(
            f"RTL of {graph.name} on {chip.name}: {cycles:,} cycles; the bench of a bare array carries {MOST_CYCLES:,}"
        )
    bundle, spent.predicted = in_cells(build_rtl(chip), liberty, spent), cycles
    with verilog(bundle) as (sources, folder):
        (result,) = run_cases(
            array, sources, bundle.top, bundle.ports, [case], simulator=simulator, folder=folder, spent=spent
        )
    parity = compare(result)
    parity.name = f"{graph.name}, {len(work)} products"
    serial = array.element == "digit_serial"  # what loom sim expects of all operands, these take more or less
    if not serial and (timed := duration(mapped.program, chip)) != cycles:
        parity.value_errors.append(f"loom sim times {timed:,} cycles, the schedule of folds has {cycles:,}")
    return Findings(
        VerifiedArray,
        "the products of loom sim, back to back",
        [parity.case()],
        sections={"array": ArrayShape(rows=array.rows, cols=array.cols, dataflow=array.dataflow)},
    )


def random_cases(array: SystolicArray, seed: int, count: int) -> list[FoldCase]:
    """``count`` random sequences of GEMMs for ``array``: every second one with random stalls on every stream."""
    chance = random.Random(seed)
    streams = ("a", "b") if array.dataflow == "output_stationary" else ("stationary", "moving")
    own = operand_type(array)
    formats = [DataType.INT4, own] if own.is_integer else [own]
    made = []
    for number in range(count):
        gemms: list[ArrayProduct] = []
        while len(gemms) < chance.randint(1, 3):
            gemms.append(_random_gemm(array, chance))
        stall = {s: chance.choice([0.0, 0.2, 0.5, 0.8]) for s in (*streams, "output")} if number % 2 else {}
        if stall and not any(stall.values()):
            stall["output"] = 0.5
        dtype = own if number < count - 1 else chance.choice(formats)
        case = FoldCase(tuple(gemms), chance.randrange(2**32), dtype, stall)
        if array.element == "digit_serial":
            case = replace(case, sigma=chance.choice([None, array.operand_sigma, 1.0, 20.0]))
        made.append(scheduled(array, case))
    return made


def scheduled(array: SystolicArray, case: FoldCase) -> FoldCase:
    """The case with the predicted times of its folds, which are those of its operands where values decide of cycles."""
    folds = [
        fold
        for gemm, (a, _) in zip(case.gemms, operands(case), strict=True)
        for fold in operand_folds(array, a, gemm.n)
    ]
    times = stall_free_schedule(array, folds)
    return replace(case, schedule=tuple(FoldTime(t.first_output, t.last_output) for t in times))


def _random_gemm(array: SystolicArray, chance: random.Random) -> ArrayProduct:
    """A GEMM of a few folds, often with edges that fill the array only in part."""
    while True:
        m, n, k = (
            chance.choice([1, chance.randint(1, side), side, chance.randint(1, 3 * side)])
            for side in (array.rows, array.cols, array.rows)
        )
        if sum(f.load_beats + f.stream_beats + array.rows for f in gemm_folds(array, m, n, k)) <= BEATS:
            return ArrayProduct(m, n, k)

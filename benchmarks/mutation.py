"""Mutation score: which of the planted bugs of `benchmarks/mutants.yaml` the project's own benches find.

Run ``python -m benchmarks.mutation [--part PART] [--only 3,17] [--write]``; all of it takes about half an hour on one
core. All bugs of a part are in one build; a file that the circuits read at time 0 says which one acts. A bug is
killed when a bench prints an error, hangs, or its comparison with the models fails: what `loom verify` and the test
suite do, with their stimulus. ``--write`` keeps what was run in the table ``benchmarks/results/mutation.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.planting import Mutant, all_mutants, choose, plant, with_number

RESULTS = Path(__file__).parent / "results" / "mutation.json"
Stage = tuple[str, Callable[[], list[str]]]
"""A bench by name, and what runs it and returns what is wrong."""
SEED = 5


def main() -> int:
    """Build, run every bug through its benches, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--part",
        action="append",
        help="array, npu, float, packed, narrow, link, ring, pim, shared, cache, beside, sums; all of them where left out",
    )
    parser.add_argument("--only", help="numbers of bugs, separated by commas")
    parser.add_argument("--simulator", help="icarus or verilator, instead of what is quickest")
    parser.add_argument("--quick", action="store_true", help="the first bench of each part alone")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    mutants = all_mutants()
    numbers = {int(word) for word in asked.only.split(",")} if asked.only else set(mutants)
    chosen = {n: each for n, each in mutants.items() if n in numbers and (not asked.part or each.part in asked.part)}
    plant(chosen.items())
    with_number()
    rows: list[dict[str, Any]] = []
    sound = True
    with TemporaryDirectory() as name:
        for part in dict.fromkeys(each.part for each in chosen.values()):
            own = {number: each for number, each in chosen.items() if each.part == part}
            stages = PARTS[part](Path(name) / part, asked.simulator)[: 1 if asked.quick else None]
            clean, found = run_part(part, own, Path(name) / part, stages)
            sound &= clean
            rows += found
    killed = sum(row["killed_by"] is not None for row in rows)
    print(f"{killed} of {len(rows)} killed ({100 * killed / max(len(rows), 1):.1f} %)")
    if asked.write and sound:
        keep(rows)
    return 0 if sound else 1


def keep(rows: list[dict[str, Any]]) -> None:
    """Put these rows into the table, in the place of what it says of the same bugs; bugs that are gone leave it."""
    old = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    by_bug = {(row["file"], row["bug"]): row for row in [*old, *rows]}
    mutants = {number: (each.file, each.what) for number, each in all_mutants().items()}
    table = [{**by_bug[bug], "number": number} for number, bug in mutants.items() if bug in by_bug]
    killed = sum(row["killed_by"] is not None for row in table)
    record = {"killed": killed, "planted": len(table), "rows": table}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def run_part(
    part: str, mutants: dict[int, Mutant], folder: Path, stages: Sequence[Stage]
) -> tuple[bool, list[dict[str, Any]]]:
    """Run all of a part's bugs; whether the benches pass without one, and a row for each."""
    began = time.perf_counter()
    where = [folder / each for each in FOLDERS[part]]
    for each in where:
        choose(each, 0)
    wrong = {name: errors for name, bench in stages if (errors := attempted(bench))}
    print(f"{part}: built and run without a bug in {time.perf_counter() - began:.0f} s", flush=True)
    for name, errors in wrong.items():
        print(f"  {name} fails without a bug: {errors[0]}")
    if wrong:
        return False, []
    rows = []
    for number, mutant in mutants.items():
        for each in where:
            choose(each, number)
        killer, reason = None, ""
        for name, bench in stages:
            if errors := attempted(bench):
                killer, reason = name, errors[0].splitlines()[0]
                break
        rows.append(
            {
                "number": number,
                "part": part,
                "file": mutant.file,
                "bug": mutant.what,
                "killed_by": killer,
                "reason": reason[:160],
            }
        )
        print(f"{number:4d} {part:6s} {mutant.what:60s} {killer or 'SURVIVES'}: {reason[:90]}", flush=True)
    return not wrong, rows


def attempted(bench: Callable[[], list[str]]) -> list[str]:
    """What is wrong; a bench that stops in its middle is wrong, too."""
    from siliconloom.arch.errors import LoomError

    try:
        return bench()
    except (LoomError, AssertionError, ValueError, IndexError, KeyError) as error:
        return [f"{type(error).__name__}: {error}"]


# The benches of each part -------------------------------------------------------------------------------------------


def npu_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Programs and faults on two tiles, in changing surroundings."""
    from siliconloom.verification.directed import directed_programs
    from siliconloom.verification.programs import random_program

    stages: list[Stage] = []
    for name, chip in npu_chips().items():
        run = _Tile(chip, folder / name, simulator or "verilator")
        random = [(f"random {n}", random_program(chip, n)) for n in range(8)]
        extreme = [(f"extreme {n}", random_program(chip, n, extreme=True)) for n in range(100, 108)]
        directed = directed_programs(chip)
        stages += [
            (f"{name}: random programs", partial(run.programs, random, 0)),
            (f"{name}: directed programs", partial(run.programs, directed, 3)),
            (f"{name}: faults", run.faults),
            (f"{name}: extreme programs", partial(run.programs, extreme, 1)),
            (f"{name}: directed programs, turned", partial(run.programs, directed, 6)),
        ]
    return stages


def npu_chips() -> dict[str, Any]:
    """Three tiles, as different as small ones can be.

    One of 4x4 with two data ports, one of 4x2 with a wide port, little bandwidth and short queues, and one of 3x5 with
    8 lanes, whose operands begin anywhere in two halves of a bank and whose blocks of columns lie over panels of sums.
    """
    from siliconloom.verification.random_tiles import random_npu

    def changed(seed: int, dram: dict[str, Any], tile: dict[str, dict[str, Any]]) -> Any:
        chip = random_npu(seed)
        memory: Any = chip.memory["dram"]
        parts = {part: getattr(chip.tile, part).model_copy(update=values) for part, values in tile.items()}
        memories = {"dram": memory.model_copy(update=dram)}
        return chip.model_copy(update={"memory": memories, "tile": chip.tile.model_copy(update=parts)})

    narrow = changed(8, {"latency": 12_000}, {})
    slow = {"latency": 15_000, "bandwidth": 35_200_000_000, "access_bytes": 64}
    wide = changed(
        4, slow, {"array": {"load_rows": 4}, "sequencer": {"queue_depth": 1}, "dma": {"bytes_per_cycle": 64}}
    )
    uneven = changed(8, {"latency": 12_000}, {"array": {"rows": 3, "cols": 5, "load_rows": 1}, "vector": {"lanes": 8}})
    return {"two-ports": narrow, "wide-port": wide, "uneven": uneven}


def float_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Programs on tiles of 4x4 in two formats, in changing surroundings."""
    from siliconloom.arch.datatype import DataType
    from siliconloom.verification.directed import directed_programs
    from siliconloom.verification.programs import random_program

    narrow, stages = npu_chips()["two-ports"], []
    for dtype in FLOATS:
        array = narrow.tile.array.model_copy(update={"operands": (DataType(dtype),)})
        chip = narrow.model_copy(update={"tile": narrow.tile.model_copy(update={"array": array})})
        run = _Tile(chip, folder / dtype, simulator or "verilator")
        random = [(f"random {n}", random_program(chip, n)) for n in range(8)]
        stages += [
            (f"{dtype}: random programs", partial(run.programs, random, 0)),
            (f"{dtype}: directed programs", partial(run.programs, directed_programs(chip), 3)),
        ]
    return stages


def sums_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Programs of tiles of 4x4 whose additions take several cycles, of small numbers and of large ones."""
    return _tile_stages(sums_chips(), folder, simulator, extreme=True)


def sums_chips() -> dict[str, Any]:
    """Three tiles: additions of two cycles, of four with every register, and of four where sums stay in the array."""
    from siliconloom.arch.datatype import DataType

    narrow, made = npu_chips()["two-ports"], {}
    for name, operand, stages, latency, dataflow in SUMS:
        kept = {"dataflow": dataflow, "load_rows": 1} if dataflow == "output_stationary" else {"dataflow": dataflow}
        parts = {
            "array": narrow.tile.array.model_copy(
                update={"operands": (DataType(operand),), "accumulate_stages": stages, **kept}
            ),
            "vector": narrow.tile.vector.model_copy(update={"sum_stages": stages, "latency": latency}),
        }
        made[name] = narrow.model_copy(update={"tile": narrow.tile.model_copy(update=parts)})
    return made


def _tile_stages(
    chips: Mapping[str, Any],
    folder: Path,
    simulator: str | None,
    directed: Callable[[Any], Any] | None = None,
    *,
    refused: bool = False,
    extreme: bool = False,
) -> list[Stage]:
    """Directed programs of each tile (by default all that there are), random ones, and what else is asked for.

    That is what it ``refused``, and programs of ``extreme`` numbers.
    """
    from siliconloom.verification.directed import directed_programs
    from siliconloom.verification.programs import random_program

    stages: list[Stage] = []
    for name, chip in chips.items():
        run = _Tile(chip, folder / name, simulator or "verilator")
        random = [(f"random {n}", random_program(chip, n)) for n in range(8)]
        large = [(f"extreme {n}", random_program(chip, n, extreme=True)) for n in range(100, 108)] if extreme else []
        stages += [
            (f"{name}: directed programs", partial(run.programs, (directed or directed_programs)(chip), 3)),
            (f"{name}: random programs", partial(run.programs, random, 0)),
            *([(f"{name}: refusals", partial(refusals, run))] if refused else []),
            *([(f"{name}: extreme programs", partial(run.programs, large, 1))] if extreme else []),
        ]
    return stages


def packed_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Programs and refusals of tiles of 4x4 with packed weights, one with minima and elements in fp32."""
    return _tile_stages(packed_chips(), folder, simulator, refused=True)


def packed_chips() -> dict[str, Any]:
    """Three tiles: headers of two lines and elements of four bytes; codes with a sign, two rows a beat; MX blocks alone."""
    from siliconloom.arch.array import WeightFormats
    from siliconloom.arch.datatype import INTEGER_CODES, MX_ELEMENTS, DataType

    narrow = npu_chips()["two-ports"]
    formats = {"all": INTEGER_CODES + MX_ELEMENTS, "int4": INTEGER_CODES[:1], "blocks": MX_ELEMENTS}
    made = {}
    for name, operand, rows, kinds, minima, elements, stages in PACKED:
        weights = WeightFormats(formats=formats[kinds], minima=minima)
        operands: dict[str, Any] = {"operands": (DataType(operand),), "load_rows": rows, "weights": weights}
        operands |= {"unpack_stages": stages}
        parts = {
            "array": narrow.tile.array.model_copy(update=operands),
            "vector": narrow.tile.vector.model_copy(update={"format": elements and DataType(elements)}),
            "scratchpad": narrow.tile.scratchpad.model_copy(update={"capacity": 64 * 1024}),
        }
        made[name] = narrow.model_copy(update={"tile": narrow.tile.model_copy(update=parts)})
    return made


def shared_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Programs of tiles of 4x4 in whole numbers between elements in fp32: int8 by one and two rows a beat, int16."""
    return _tile_stages(shared_chips(), folder, simulator)


def shared_chips() -> dict[str, Any]:
    """Three tiles, by the format and the rows of a beat."""
    from siliconloom.arch.datatype import DataType

    narrow, made = npu_chips()["two-ports"], {}
    for name, operand, rows in SHARED:
        parts = {
            "array": narrow.tile.array.model_copy(update={"operands": (DataType(operand),), "load_rows": rows}),
            "vector": narrow.tile.vector.model_copy(update={"format": DataType.FP32}),
            "scratchpad": narrow.tile.scratchpad.model_copy(update={"capacity": 64 * 1024}),
        }
        made[name] = narrow.model_copy(update={"tile": narrow.tile.model_copy(update=parts)})
    return made


def cache_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Programs and refusals of tiles of 4x4 that keep keys and values in formats of their own."""
    from siliconloom.verification.cached_directed import cache_programs

    return _tile_stages(cache_chips(), folder, simulator, cache_programs, refused=True)


def cache_chips() -> dict[str, Any]:
    """Two tiles: every format before elements in fp32, and eight bits beside MX blocks of the same format in fp16."""
    from siliconloom.arch.array import WeightFormats
    from siliconloom.arch.datatype import CACHE_CODES, MX_ELEMENTS, DataType

    narrow, made = npu_chips()["two-ports"], {}
    for name, operand, rows, elements, stages, together in CACHE:
        dtype = DataType(operand)
        operands: dict[str, Any] = {"operands": (dtype,), "load_rows": rows, "unpack_stages": stages}
        operands |= {"cache": (dtype, *CACHE_CODES)} if elements else {"cache": CACHE_CODES}
        operands |= {} if elements else {"weights": WeightFormats(formats=MX_ELEMENTS)}
        parts = {
            "array": narrow.tile.array.model_copy(update=operands),
            "vector": narrow.tile.vector.model_copy(
                update={"format": elements and DataType(elements), "transpose_rows": together}
            ),
            "scratchpad": narrow.tile.scratchpad.model_copy(update={"capacity": 64 * 1024}),
        }
        made[name] = narrow.model_copy(update={"tile": narrow.tile.model_copy(update=parts)})
    return made


def narrow_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Programs and faults on two tiles with lines of eight values, so that narrow ones have three widths."""
    from siliconloom.verification.directed import directed_programs
    from siliconloom.verification.programs import random_program

    stages: list[Stage] = []
    for name, chip in narrow_chips().items():
        run = _Tile(chip, folder / name, simulator or "verilator")
        random = [(f"random {n}", random_program(chip, n)) for n in range(16)]
        stages += [
            (f"{name}: random programs", partial(run.programs, random, 0)),
            (f"{name}: directed programs", partial(run.programs, directed_programs(chip), 3)),
            (f"{name}: faults", run.faults),
        ]
    return stages


def narrow_chips() -> dict[str, Any]:
    """Two tiles of 8x8 in int8: one keeps weights and loads two rows a beat, one keeps sums."""
    chip, made = npu_chips()["two-ports"], {}
    for name, dataflow, load_rows in NARROW:
        array = {"rows": 8, "cols": 8, "dataflow": dataflow, "load_rows": load_rows}
        parts = {
            "array": chip.tile.array.model_copy(update=array),
            "vector": chip.tile.vector.model_copy(update={"lanes": 8}),
            "scratchpad": chip.tile.scratchpad.model_copy(update={"capacity": 64 * 1024}),
            "accumulator": chip.tile.accumulator.model_copy(update={"capacity": 4096}),
        }
        made[name] = chip.model_copy(update={"tile": chip.tile.model_copy(update=parts)})
    return made


def refusals(run: _Tile) -> list[str]:
    """What is wrong with the causes of products whose weights, and of results whose format, the tile does not know."""
    from siliconloom.verification.faults import fault_cases

    faults = [fault for fault in fault_cases(run.chip) if fault.name.startswith(("weights in", "results"))]
    return causes(run, faults)


def causes(run: _Tile, faults: Sequence[Any]) -> list[str]:
    """Which of these did not end with their cause."""
    outcomes = run.run([fault.case for fault in faults])
    return [
        f"{fault.name}: {outcome.cause.text if outcome.ended else 'hangs'}"
        for fault, outcome in zip(faults, outcomes, strict=True)
        if not outcome.ended or outcome.cause != fault.cause
    ]


PACKED = (
    ("two-lines", "bf16", 1, "all", True, "fp32", 6),
    ("signed", "fp16", 2, "int4", False, None, 3),
    ("blocks", "fp16", 2, "blocks", False, None, 1),
)
"""Tiles with packed weights: format of operands, rows a beat, formats of weights, minima, format of elements,
registers between edge and array."""
CACHE = (("wide", "bf16", 2, "fp32", 2, 4), ("blocks", "fp16", 1, None, 0, 1))
"""Tiles that keep keys and values in fewer bits: format of operands, rows a beat, format of elements, registers
between edge and array, rows that are turned together."""
SHARED = (("two-rows", "int8", 2), ("one-row", "int8", 1), ("int16", "int16", 2))
"""Tiles in int8 between elements in fp32, by the rows of a beat."""
NARROW = (("weights-stay", "weight_stationary", 2), ("sums-stay", "output_stationary", 1))
"""Tiles with narrow lines: what stays in the array, and rows a beat."""
SUMS = (
    ("two-stages", "bf16", 2, 20, "weight_stationary"),
    ("four-stages", "fp16", 4, 88, "weight_stationary"),
    ("kept-sums", "bf16", 4, 30, "output_stationary"),
)
"""Tiles whose additions take cycles: format of operands, the cycles, the unit's latency, what stays in the array."""
FLOATS = ("bf16", "fp8_e4m3")
"""Formats of the part of tiles in floating point."""


class _Tile:
    """A tile that is built once."""

    def __init__(self, chip: Any, folder: Path, simulator: str) -> None:
        from siliconloom.rtl.emit import build_rtl

        self.chip, self.folder, self.simulator = chip, folder, simulator
        bundle = build_rtl(chip)
        self.top = bundle.top
        self.sources = bundle.write(folder / "rtl")

    def run(self, cases: Sequence[Any]) -> list[Any]:
        from siliconloom.rtl.bench.programs import run_programs

        return run_programs(self.chip, self.sources, self.top, cases, folder=self.folder, simulator=self.simulator)

    def programs(self, programs: Sequence[tuple[str, Any]], turn: int) -> list[str]:
        """What differs in runs of these programs, each in other surroundings."""
        from siliconloom.rtl.bench.programs import ProgramCase
        from siliconloom.verification.npu import compare, surrounded

        placed = [(name, *surrounded(made, turn + n, seed=SEED)) for n, (name, made) in enumerate(programs)]
        cases = [
            ProgramCase(made.program, made.memory, made.base, limit=60_000, channel=made.channel, **more)
            for _, made, more in placed
        ]
        errors = []
        for (name, made, _), case, outcome in zip(placed, cases, self.run(cases), strict=True):
            errors += compare(name, self.chip, made, outcome, case.stall > 0).errors
        return errors

    def faults(self) -> list[str]:
        """What is wrong with the causes, and with a run after each error of the bus."""
        from siliconloom.arch.faults import Cause
        from siliconloom.rtl.bench.programs import ProgramCase
        from siliconloom.verification.faults import fault_cases
        from siliconloom.verification.npu import compare
        from siliconloom.verification.programs import random_program

        faults = fault_cases(self.chip)
        good = random_program(self.chip, 4)
        after = ProgramCase(good.program, good.memory, good.base, limit=60_000)
        last = faults[-1]
        cases = [c for f in faults for c in ([f.case, after] if f.cause == Cause.BUS_ERROR or f is last else [f.case])]
        outcomes = iter(self.run(cases))
        errors = []
        for fault in faults:
            outcome = next(outcomes)
            if not outcome.ended:
                errors.append(f"{fault.name}: hangs")
            elif outcome.cause != fault.cause or fault.number not in (None, outcome.instruction):
                errors.append(f"{fault.name}: '{outcome.cause.text}' at instruction {outcome.instruction}")
            if fault.cause == Cause.BUS_ERROR or fault is last:
                errors += compare(f"after {fault.name}", self.chip, good, next(outcomes)).errors
        return errors


def array_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Sequences of products on a small array of every dataflow."""
    from siliconloom.arch import load_chip
    from siliconloom.arch.array import SystolicArray
    from siliconloom.rtl.bench.runner import run_cases
    from siliconloom.rtl.emit import build_rtl
    from siliconloom.verification.array import compare, random_cases

    def stage(name: str, sets: list[tuple[str, str]]) -> Stage:
        chip = load_chip(name, sets)
        array = chip.tile.array if hasattr(chip.tile, "array") else chip.tile
        assert isinstance(array, SystolicArray)
        bundle = build_rtl(chip)
        sources = bundle.write(folder / name / "rtl")
        cases = random_cases(array, SEED, 12)

        def bench() -> list[str]:
            options: dict[str, Any] = {"simulator": simulator or "icarus", "folder": folder / name}
            results = run_cases(array, sources, bundle.top, bundle.ports, cases, **options)
            return [error for result in results for error in compare(result).errors]

        return name, bench

    small = [("tile.array.rows", "4"), ("tile.array.cols", "4")]
    return [stage(name, small) for name in ARRAYS]


ARRAYS = ("systolic-ws-8", "systolic-os-8")


def link_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Flits over two links, with and without wrong bits."""
    from siliconloom.arch.link import LinkProtocol
    from siliconloom.rtl.bench.link_cases import run_link_cases
    from siliconloom.verification.link import compare_link
    from siliconloom.verification.link_cases import random_link_case

    links = {
        "short": LinkProtocol(flit_bits=128, wire_cycles=3, packet_flits=4, outstanding=2, credits=8, timeout=20),
        "long": LinkProtocol(wire_cycles=40, packet_flits=8, outstanding=16, credits=16, timeout=95),
    }

    def stage(name: str, protocol: LinkProtocol) -> Stage:
        cases = [random_link_case(protocol, SEED + n, rate, 120) for n, rate in enumerate((0, 0, 0.002, 0.01, 0.05))]

        def bench() -> list[str]:
            options: dict[str, Any] = {"simulator": simulator or "icarus", "folder": folder / name}
            outcomes = run_link_cases(protocol, cases, **options, limit=20_000)
            pairs = enumerate(zip(cases, outcomes, strict=True))
            return [error for n, both in pairs for error in compare_link(protocol, n, *both).errors]

        return f"{name} link", bench

    return [stage(name, protocol) for name, protocol in links.items()]


def ring_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Collectives on rings of three chips, of both kinds of operand."""
    from siliconloom.arch.datatype import DataType
    from siliconloom.arch.link import LinkProtocol
    from siliconloom.arch.ring import RingEngine
    from siliconloom.rtl.bench.ring_cases import run_ring_cases
    from siliconloom.verification.link import compare_ring
    from siliconloom.verification.link_cases import random_ring_case

    protocols = {
        "int8": LinkProtocol(flit_bits=128, wire_cycles=3, packet_flits=4, outstanding=2, credits=8, timeout=20),
        "int32": LinkProtocol(flit_bits=128, wire_cycles=6, packet_flits=1, outstanding=1, credits=4, timeout=25),
    }

    def stage(name: str, protocol: LinkProtocol) -> Stage:
        engine = RingEngine(operand=DataType(name))
        rates = (0, 0, 0.01, 0.05, 0.05, 0.05)
        cases = [random_ring_case(engine, protocol, 3, SEED + n, rate) for n, rate in enumerate(rates)]

        def bench() -> list[str]:
            options: dict[str, Any] = {"simulator": simulator or "icarus", "folder": folder / name}
            outcomes = run_ring_cases(engine, protocol, 3, cases, **options, limit=40_000)
            pairs = enumerate(zip(cases, outcomes, strict=True))
            return [error for n, both in pairs for error in compare_ring(engine, protocol, n, *both).errors]

        return f"ring of {name}", bench

    return [stage(name, protocol) for name, protocol in protocols.items()]


def pim_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Macros on channels of three kinds."""
    from siliconloom.arch import load_chip
    from siliconloom.rtl.bench.pim_cases import run_pim_cases
    from siliconloom.rtl.emit import build_rtl
    from siliconloom.verification.pim import compare, pim_cases

    def stage(name: str) -> Stage:
        chip = load_chip("pim-hbm", [*CHANNEL, *CHANNELS[name]])
        bundle = build_rtl(chip)
        sources = bundle.write(folder / name / "rtl")
        cases: list[Any] = pim_cases(chip.tile, SEED, 8)[0]

        def bench() -> list[str]:
            options: dict[str, Any] = {"simulator": simulator or "icarus", "folder": folder / name}
            outcomes = run_pim_cases(chip.tile, sources, bundle.top, bundle.ports, cases, **options)
            pairs = zip(cases, outcomes, strict=True)
            return [error for both in pairs for error in compare(chip.tile, *both).errors]

        return f"channel, {name}", bench

    return [stage(name) for name in CHANNELS]


def beside_stages(folder: Path, simulator: str | None) -> list[Stage]:
    """Programs and faults of tiles of 2x2 that drive a channel: in bf16, and of elements in fp32."""
    from siliconloom.verification.channel_programs import channel_program
    from siliconloom.verification.faults import channel_faults

    stages: list[Stage] = []
    for name, chip in beside_chips().items():
        run = _Tile(chip, folder / name, simulator or "verilator")
        random = [(f"channel {n}", channel_program(chip, n)) for n in range(6)]
        faults = channel_faults(chip)
        stages += [
            (f"{name}: programs", partial(run.programs, random, 0)),
            (f"{name}: faults", partial(causes, run, faults)),
        ]
    return stages


def beside_chips() -> dict[str, Any]:
    """Two tiles, by the format of their elements; the channel of both refreshes often."""
    from siliconloom.arch import load_chip

    channel = [(key.replace("tile.", "tile.pim."), value) for key, value in CHANNEL if key != "tile.lanes"]
    own = [("tile.pim.lanes", "2"), ("tile.pim.activate_group", "2")]
    small = [*BESIDE, *channel, *own]
    return {name: load_chip("npu-pim-edge", [*small, ("tile.vector.format", ELEMENTS[name])]) for name in ELEMENTS}


ELEMENTS = {"bf16": "null", "fp32": "fp32"}
"""Formats of elements of tiles beside a channel, as descriptions have them."""
BESIDE = [
    ("tile.array.rows", "2"),
    ("tile.array.cols", "2"),
    ("tile.array.load_rows", "1"),
    ("tile.scratchpad.capacity", "64 KiB"),
    ("tile.accumulator.capacity", "2 KiB"),
    ("tile.vector.lanes", "2"),
    ("tile.vector.transpose_rows", "2"),
    ("tile.dma.bytes_per_cycle", "16"),
    ("tile.dma.port_bytes", "16"),
    ("memory.dram.access_bytes", "16"),
]
CHANNEL = [
    ("tile.dram.organization.bank_groups", "2"),
    ("tile.dram.organization.banks", "2"),
    ("tile.dram.organization.rows", "64"),
    ("tile.dram.organization.columns", "32"),
    ("tile.dram.organization.bus_bits", "32"),
    ("tile.lanes", "4"),
    ("tile.global_buffer", "512 B"),
    ("tile.dram.timing.tREFI", "700"),
]
CHANNELS: dict[str, list[tuple[str, str]]] = {
    "described": [],
    "blocked": [("tile.dual_row_buffer", "false")],
    "refreshed-often": [("tile.dram.timing.tREFI", "48"), ("tile.dram.timing.tRFC", "30")],
    "two-ranks": [("tile.activate_group", "2"), ("tile.dram.organization.ranks", "2")],
}
PARTS: dict[str, Callable[[Path, str | None], list[Stage]]] = {
    "npu": npu_stages,
    "float": float_stages,
    "packed": packed_stages,
    "narrow": narrow_stages,
    "array": array_stages,
    "link": link_stages,
    "ring": ring_stages,
    "pim": pim_stages,
    "shared": shared_stages,
    "cache": cache_stages,
    "beside": beside_stages,
    "sums": sums_stages,
}
FOLDERS = {
    "npu": ("two-ports", "wide-port", "uneven"),
    "float": FLOATS,
    "packed": tuple(name for name, *_ in PACKED),
    "narrow": tuple(name for name, *_ in NARROW),
    "array": ARRAYS,
    "link": ("short", "long"),
    "ring": ("int8", "int32"),
    "pim": tuple(CHANNELS),
    "shared": tuple(name for name, _, _ in SHARED),
    "cache": tuple(name for name, *_ in CACHE),
    "beside": tuple(ELEMENTS),
    "sums": tuple(name for name, *_ in SUMS),
}

if __name__ == "__main__":
    sys.exit(main())

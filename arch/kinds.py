"""What kind of machine a file or a library entry describes."""

from __future__ import annotations

from pathlib import Path

from siliconloom.arch.document import Document, find_file
from siliconloom.arch.names import LIBRARY, gpu_names


def is_gpu(name: str) -> bool:
    """Whether ``name`` is a GPU of the library, or a file that describes one."""
    if name.lower() in {n.lower() for n in gpu_names()}:
        return True
    path = Path(name)
    return path.is_file() and Document.load(path).data.get("kind") == "gpu"


def machine_kind(name: str) -> str:
    """Whether a file or library entry describes a ``chip``, a ``system`` or a ``gpu``."""
    if is_gpu(name):
        return "gpu"
    return Document.load(find_file(name, LIBRARY, "chip")).expect_kind(["chip", "system"])

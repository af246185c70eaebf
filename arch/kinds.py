"""What kind of machine a file or a library entry describes."""

from __future__ import annotations

import os
from pathlib import Path

from siliconloom.arch.document import Document, find_document
from siliconloom.arch.names import LIBRARY, gpu_names


def is_gpu(name: str | Document) -> bool:
    """Whether ``name`` is a GPU of the library, or a file or description of one."""
    if isinstance(name, Document):
        return name.data.get("kind") == "gpu"
    if name.lower() in {n.lower() for n in gpu_names()}:
        return True
    path = Path(name)
    return os.path.isfile(path) and Document.load(path).data.get("kind") == "gpu"


def machine_document(name: str) -> Document:
    """Description of a machine by file or library name, as it is written."""
    if name.lower() in (known := {n.lower(): n for n in gpu_names()}):
        return find_document(known[name.lower()], LIBRARY / "gpu", "GPU")
    return find_document(name, LIBRARY, "chip, system or GPU", gpu_names())


def machine_kind(name: str | Document) -> str:
    """Whether a file, a library entry or a description is of a ``chip``, a ``system`` or a ``gpu``."""
    if is_gpu(name):
        return "gpu"
    return find_document(name, LIBRARY, "chip, system or GPU", gpu_names()).expect_kind(["chip", "system"])

"""A design in a library's cells, for the same benches: what is compared is what synthesis made of the Verilog."""

from __future__ import annotations

from pathlib import Path

from siliconloom.arch.working import working_folder
from siliconloom.rtl.bench.runner import Spent
from siliconloom.rtl.emit import Bundle
from siliconloom.rtl.synthesis.gates import gate_level


def in_cells(bundle: Bundle, liberty: Path | None, spent: Spent | None = None) -> Bundle:
    """The same design in the cells of a library, if there is one; memories stay what they are.

    Raises
    ------
    LoomError
        When Yosys is missing, or the file is not a library that has cells for all of the design.
    """
    if liberty is None:
        return bundle
    if spent is not None and spent.tell is not None:
        spent.tell(f"Yosys: {bundle.top} in the cells of {liberty.name} ...")
    with working_folder("synth") as folder:
        return gate_level(bundle, liberty, folder, flatten=not bundle.runs_programs)


__all__ = ["in_cells"]

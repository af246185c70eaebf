"""Plants bugs in the circuits while they are imported: one build holds them all, a file read at time 0 says which acts.

A site is a piece of a source file that stands there once, with a mark: ``before <|right|=|wrong|> after``. The right
expression becomes a choice between the two, by a number that the simulated circuit reads from ``planted.hex``.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import yaml

FILE = "planted.hex"
MODULE = "planted_number"
VERILOG = f"""// Which of the planted bugs acts, none when it is 0.
module {MODULE} (output wire [15:0] number);
    reg [15:0] chosen [0:0];
    initial $readmemh("{FILE}", chosen);
    assign number = chosen[0];
endmodule
"""


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Parameters
    ----------
    part
        Bench that it is run in.
    file
        Source file of the circuit, from the repository's root.
    site
        Where, and what is there instead; see the module's text.
    what
        What is wrong, in words.
    """

    part: str
    file: str
    site: str
    what: str

    @property
    def pieces(self) -> tuple[str, str, str, str]:
        """What stands before, right, wrong, after."""
        before, rest = self.site.split("<|")
        right, rest = rest.split("|=|")
        wrong, after = rest.split("|>")
        return before, right, wrong, after

    @property
    def module(self) -> str:
        """Name of the module that is changed."""
        return "siliconloom." + self.file.removesuffix(".py").replace("/", ".")


def all_mutants() -> dict[int, Mutant]:
    """The bugs of ``mutants.yaml`` by the number that chooses them, in its order."""
    tree = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text(encoding="utf-8"))
    found = [
        Mutant(part, file, each["site"], each["bug"])
        for part, files in tree.items()
        for file, entries in files.items()
        for each in entries
    ]
    return dict(enumerate(found, 1))


_selected: dict[int, tuple[Any, Any]] = {}


def planted(m: Any, right: Any, wrong: dict[int, Any]) -> Any:
    """The right value, or the wrong one whose number is chosen; ``m`` is the module that uses it."""
    from amaranth import Instance, Mux, Signal

    if id(m) not in _selected:
        number = Signal(16, name=MODULE)
        m.submodules += Instance(MODULE, o_number=number)
        _selected[id(m)] = (m, number)
    number = _selected[id(m)][1]
    for mutant, value in wrong.items():
        right = Mux(number == mutant, value, right)
    return right


def patched(source: str, mutants: Iterable[tuple[int, Mutant]]) -> str:
    """``source`` with every site a choice; raises `ValueError` for a site that is not there once."""
    spots: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for number, mutant in mutants:
        before, right, wrong, after = mutant.pieces
        if (times := source.count(before + right + after)) != 1:
            raise ValueError(f"{mutant.file}: {mutant.what}: its site is there {times} times")
        start = source.index(before + right + after) + len(before)
        spots[start, start + len(right)][number] = wrong
    end = len(source) + 1
    for (start, stop), wrong in sorted(spots.items(), reverse=True):
        if stop > end:
            raise ValueError(f"two sites overlap at {source[start:stop]!r}")
        bad = ", ".join(f"{number}: ({text})" for number, text in wrong.items())
        source = f"{source[:start]}_planted(m, ({source[start:stop]}), {{{bad}}}){source[stop:]}"
        end = start
    return source


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, mutants: Sequence[tuple[int, Mutant]]) -> None:
        super().__init__(name, path)
        self.mutants = mutants

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(patched(Path(path).read_text(encoding="utf-8"), self.mutants), path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_planted"] = planted
        super().exec_module(module)


class _Finder:
    def __init__(self, mutants: dict[str, list[tuple[int, Mutant]]]) -> None:
        self.mutants = mutants

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self.mutants:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin, self.mutants[name])
        return spec


def plant(mutants: Iterable[tuple[int, Mutant]]) -> None:
    """Plant these from now on; raises `RuntimeError` when a module that they change is imported already."""
    by_module: dict[str, list[tuple[int, Mutant]]] = defaultdict(list)
    for number, mutant in mutants:
        by_module[mutant.module].append((number, mutant))
    if late := sorted(set(by_module) & set(sys.modules)):
        raise RuntimeError(f"imported before the bugs were planted: {', '.join(late)}")
    sys.meta_path.insert(0, _Finder(by_module))  # type: ignore[arg-type]


def with_number() -> None:
    """Have every library of circuits write the module that reads the number, too."""
    from siliconloom.rtl.library import Library

    whole: Callable[..., dict[str, str]] = Library.verilog

    def verilog(self: Any, top: Any, *told: Any) -> dict[str, str]:
        return {**whole(self, top, *told), MODULE: VERILOG}

    Library.verilog = verilog  # type: ignore[method-assign]


def choose(folder: Path, number: int) -> None:
    """Have what is simulated in ``folder`` from now on act on this bug."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(f"{number:x}\n", encoding="ascii")

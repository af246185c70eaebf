"""Turns circuits in RTLIL into Verilog: runs Yosys, and tidies what it writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from amaranth._toolchain import require_tool
from amaranth._toolchain.yosys import find_yosys

from siliconloom.arch.errors import LoomError

os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")


def _yosys() -> Any:
    """The Yosys that writes the Verilog: Amaranth's own, or the one that its environment variables name."""
    return find_yosys(lambda version: version >= (0, 40))


def writers() -> tuple[str, ...]:
    """Names and versions of the programs that turn circuits into Verilog: another one may write another text."""
    yosys = _yosys()
    return f"amaranth {metadata.version('amaranth')}", f"{yosys.__name__} {yosys.version()}"


class VerilogWriter:
    """Runs of Yosys, in as many threads as ask for them; what still runs when the block is left early is ended."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False
        self._lock = threading.Lock()
        self._cache: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> VerilogWriter:
        if not _keeps_cache():
            self._cache = tempfile.TemporaryDirectory(prefix="loom-yosys-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended = True
            for process in self._running if kind is not None else ():
                process.kill()
        if self._cache is not None:
            self._cache.cleanup()

    def modules(self, texts: Mapping[str, str], outlines: Sequence[str]) -> dict[str, str]:
        """Verilog of modules in RTLIL by name; of others that they hold the outlines are enough."""
        text = self._to_verilog("\n".join([*texts.values(), *outlines]))
        modules = {
            found[1]: _in_repeats(_split_aliases(_plain_choices(found[0])))
            for found in re.finditer(r"^module \\?(\S+?)\s?\(.*?^endmodule\n", text, re.M | re.S)
        }
        if set(modules) != set(texts):
            raise AssertionError(f"Yosys returned other modules than it was given: {sorted(set(modules) ^ set(texts))}")
        return modules

    def _to_verilog(self, rtlil_text: str) -> str:
        """Convert RTLIL modules to Verilog with Amaranth's own Yosys, as ``amaranth.back.verilog`` does, and tidier.

        Initial values are left out, of registers and of memories: what needs a value has a reset, and a register that
        is initialised and assigned is not portable. Names that nothing uses are removed, or every linter complains.
        """
        rtlil_text = re.sub(r"^ *attribute \\init .*\n", "", rtlil_text, flags=re.M)
        script = [
            f"read_rtlil <<rtlil\n{rtlil_text}\nrtlil",
            "delete t:$meminit_v2",
            "proc -norom",
            "opt_expr",
            "opt_dff",
            "wreduce",
            "opt_clean -purge",
            "attrmap -remove generator -remove top -remove src -remove amaranth.hierarchy -remove amaranth.decoding",
            "attrmap -modattr -remove generator -remove top -remove src -remove amaranth.hierarchy",
            "write_verilog -norename -noattr",
        ]
        status, out, told = self._run(_command(), "\n".join(script))
        if status:  # the circuits are sound: what stops it is the machine
            said = [line for line in told.splitlines() if line.strip()] or ["no reason given"]
            raise LoomError(f"Yosys could not write the Verilog: {said[-1].strip()}")
        return re.sub(r"\A(-- .+\n|\n)*", "", out)  # some builds begin with their licence

    def _run(self, command: Sequence[str], script: str) -> tuple[int, str, str]:
        """Status, output and errors of Yosys."""
        pipe = subprocess.PIPE
        own = {} if self._cache is None else {"XDG_CACHE_HOME": self._cache.name}
        with self._lock:
            if self._ended:
                return 1, "", "it was to stop"
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", env={**os.environ, **own}
            )
            self._running.add(process)
        out, told = process.communicate(script)
        with self._lock:
            self._running.discard(process)
        return process.returncode, out, told


def _command() -> list[str]:
    """Yosys as a command that reads its script from its standard input."""
    yosys = _yosys()
    package = getattr(yosys, "YOSYS_PACKAGE", None)
    program = [sys.executable, "-m", package] if package is not None else [require_tool(yosys.YOSYS_BINARY)]
    return [*program, "-q", "-"]


def _keeps_cache() -> bool:
    """Whether the machine code of Amaranth's own Yosys can be kept where wasmtime does, which stops where it cannot."""
    if sys.platform != "linux":
        return True
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wasmtime"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # or there is no home
        return False
    return os.access(folder, os.W_OK)


def _plain_choices(text: str) -> str:
    """Write the choices of many (``Switch``) in a module as blocks, ``always @*`` with a ``casez``.

    Yosys writes each as a function that is called once, with all that is chosen among as an argument. Icarus looks for
    its name, which begins with a dollar sign, among its own. Verilator copies the arguments of a table, which may be
    thousands of constant bits, in every cycle, and gives the copies other names in every instance of the module, which
    then do not share their code.
    """
    plain = (f"choice_{number}" for number in count())
    for found in list(_CHOICE.finditer(text)):
        name = next(each for each in plain if not re.search(rf"\b{each}(_among|_by)?\b", text))
        others, among, by = _arguments(found["arguments"])
        cases = re.sub(r"^    ", "      ", found["cases"], flags=re.M).replace(f"{found['name']}  = ", f"{name} = ")
        cases = re.sub(r"= a;$", f"= {others};", re.sub(r"= b(?=\[|;)", f"= {name}_among", cases), flags=re.M)
        text = text.replace(
            found[0],
            f"  wire {found['among'] or ''}{name}_among = {among};\n"
            f"  wire {found['by'] or ''}{name}_by = {by};\n"
            f"  reg {found['width'] or ''}{name};\n"
            f"  always @*\n    casez ({name}_by){cases}    endcase\n"
            f"  assign {found['target']} = {name};\n",
        )
    if re.search(r"^  function ", text, re.M):
        raise AssertionError("Yosys wrote a function in a form that is not known")
    return text


_CHOICE = re.compile(
    r"^  function (?P<width>\[\d+:\d+\] )?(?P<name>\\\$\S+) ;\n"
    r"    input (?:\[\d+:\d+\] )?a;\n"
    r"    input (?P<among>\[\d+:\d+\] )?b;\n"
    r"    input (?P<by>\[\d+:\d+\] )?s;\n"
    r"    casez \(s\)(?P<cases>.*?)    endcase\n"
    r"  endfunction\n"
    r"  assign (?P<target>[^\n]*?) = (?P=name) \((?P<arguments>[^\n]*)\);\n",
    re.M | re.S,
)


def _arguments(text: str) -> list[str]:
    """What stands between the commas of ``text`` that are in no braces, with the space that ends an escaped name."""
    found, depth = [""], 0
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [each.lstrip() for each in found]


def _split_aliases(text: str) -> str:
    """Mark wires of which one bit is another bit of theirs.

    Yosys leaves out the copies of a sign bit from what it computes, and adds them by an assignment of the wire to
    itself. Verilator takes that for a combinational loop unless it treats the wire's bits apart.
    """
    bit = r"\1 ?\[\d+\]"
    for name in sorted(set(re.findall(rf"^  assign (\S+?) ?\[[\d:]+\] = (?:{bit}|{{(?: {bit},?)+ }});$", text, re.M))):
        text = re.sub(
            rf"^(  (?:wire|reg) \[\d+:0\] {re.escape(name)}) ?;$", r"\1 /* verilator split_var */;", text, flags=re.M
        )
    return text


def _in_repeats(text: str) -> str:
    """Write what follows itself in a concatenation as a replication: ``{ a, a, a, b }`` as ``{ {3{a}}, b }``.

    Yosys writes every copy of a sign, of which a lane has thousands, and Verilator moves and masks each by itself: the
    C++ of a lane is several times as long.
    """
    text = _REPEATED.sub(lambda found: f"{{{len(_ITEM.findall(found[0]))}{{{found['item']}}}}}", text)
    return _ALONE.sub(r"\1", text)


_ITEM = re.compile(r"(?:\\\S+ (?:\[[\d:]+\])?|[A-Za-z_]\w*(?: ?\[[\d:]+\])?|\d+'[bdh]\w+)")
"""What stands between the commas of a concatenation: a name, bits of it, or a number."""
_REPEATED = re.compile(rf"(?<=[{{,] )(?P<item>{_ITEM.pattern})(?:, (?P=item)){{2,}}(?=,| ?\}})")
"""An item of a concatenation that follows itself twice at least."""
_ALONE = re.compile(rf"\{{ (\{{\d+\{{{_ITEM.pattern}\}}\}}) \}}")
"""A concatenation of nothing but a replication."""


__all__ = ["VerilogWriter", "writers"]

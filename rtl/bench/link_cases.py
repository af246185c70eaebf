"""Runs flits over the RTL of a link, with waits and wrong bits, and collects when they were taken and delivered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.link import CONTROL_BITS, LinkProtocol
from siliconloom.rtl.bench.runner import Spent, require_simulator, simulate
from siliconloom.rtl.flows.rules import protocol_rules
from siliconloom.rtl.library import Library
from siliconloom.rtl.link.receiver import LinkReceiver
from siliconloom.rtl.link.sender import LinkSender

PATTERN = 1 << 14
"""Cycles after which the patterns of waits repeat."""
SETTLE = 600
"""Cycles after the last delivery for which the bench looks out for more."""


class Fault(Struct, frozen=True):
    """Wrong bits that arrive in ``cycle``: masks of the symbol, the flit and the control word."""

    cycle: int
    symbol: int = 0
    flit: int = 0
    control: int = 0


class LinkBenchCase(Struct, frozen=True):
    """Flits to send, who waits when, and what goes wrong.

    Parameters
    ----------
    flits
        Data and ``tlast``.
    source, sink
        Willing or not, for each of `PATTERN` cycles.
    faults
        At most one a cycle, in order.
    """

    flits: Sequence[tuple[int, bool]]
    source: NDArray[np.bool_]
    sink: NDArray[np.bool_]
    faults: Sequence[Fault] = ()


class LinkOutcome(Struct):
    """What the RTL did: cycles of taking and delivering, what was delivered, and its counters by name."""

    ended: bool
    taken: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    flits: list[tuple[int, bool]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


COUNTERS = ("retries", "timeouts", "control_errors", "errors", "duplicates", "overflows")


def template(name: str) -> Template:
    """A bench's template."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(f"siliconloom.rtl.{part}", ".") for part in ("bench", "npu")]),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    ).get_template(name)


def run_link_cases(
    protocol: LinkProtocol,
    cases: Sequence[LinkBenchCase],
    *,
    folder: Path,
    simulator: str = "verilator",
    limit: int = 400_000,
    spent: Spent | None = None,
) -> list[LinkOutcome]:
    """Build sender and receiver, and run ``cases`` on them one after the other; adds to ``spent``.

    Raises
    ------
    LoomError
        When the simulator is missing or stops before its end.
    """
    require_simulator(simulator)
    folder.mkdir(parents=True, exist_ok=True)
    library = Library("bench")
    sender, receiver = library.make(LinkSender, protocol), library.make(LinkReceiver, protocol)
    most = max(len(case.flits) for case in cases) + 1
    faults = max(len(case.faults) for case in cases) + 1
    width = protocol.flit_bits
    texts = library.verilog(sender)
    texts["link_bench"] = template("link.v.j2").render(
        flit=width,
        wire=protocol.wire_cycles,
        flits=most,
        faults=faults,
        pattern=PATTERN,
        settle=SETTLE,
        sender=sender.module_name,
        receiver=receiver.module_name,
    ) + protocol_rules("link_bench", axi=False)
    sources = []
    for name, text in texts.items():
        sources.append(folder / f"{name}.v")
        sources[-1].write_text(text, encoding="utf-8")
    for index, case in enumerate(cases):
        flits = [data | last << width for data, last in case.flits] + [0] * (most - len(case.flits))
        patterns = (case.sink.astype(int) << 1 | case.source.astype(int)).tolist()
        records = [
            f.flit | f.control << width | f.symbol << width + CONTROL_BITS | f.cycle << width + CONTROL_BITS + 4
            for f in case.faults
        ]
        records += [0xFFFFFFFF << width + CONTROL_BITS + 4] * (faults - len(records))
        for name, words in (
            ("flits", flits),
            ("willing", patterns),
            ("faults", records),
            ("amount", [len(case.flits)]),
        ):
            write_hex(folder / f"{name}_{index}.hex", words)
    ended = run_bench(folder, sources, "link_bench", len(cases), simulator, limit, spent)
    return [_outcome(folder / f"log_{index}.txt", end) for index, end in enumerate(ended)]


def run_bench(
    folder: Path, sources: Sequence[Path], top: str, cases: int, simulator: str, limit: int, spent: Spent | None = None
) -> list[bool]:
    """Run the cases of a bench that keeps its logs itself; tells which of them came to their end; adds to ``spent``."""
    job, results = folder / "job.json", folder / "results.json"
    results.unlink(missing_ok=True)
    job.write_text(json.dumps({"cases": cases, "limit": limit, "results": str(results)}), encoding="utf-8")
    simulate(
        sources,
        top,
        ("clk", "rst", "index", "load", "finished"),
        simulator=simulator,
        folder=folder,
        bench="siliconloom.rtl.bench.link",
        environment={"LOOM_BENCH": str(job)},
        arguments=["-Wno-fatal"],
        spent=spent,
    )
    if not results.exists():
        raise LoomError("the simulation stopped before its end")
    ended: list[bool] = json.loads(results.read_text(encoding="utf-8"))
    return ended


def write_hex(path: Path, words: Sequence[int]) -> None:
    """Words for ``$readmemh``, one a line."""
    path.write_text("".join(f"{word:x}\n" for word in words), encoding="ascii")


def _outcome(log: Path, ended: bool) -> LinkOutcome:
    outcome = LinkOutcome(ended)
    for line in log.read_text(encoding="ascii").splitlines():
        kind, *values = line.split()
        if kind == "T":
            outcome.taken.append(int(values[0]))
        elif kind == "D":
            outcome.delivered.append(int(values[0]))
            outcome.flits.append((int(values[2], 16), values[1] == "1"))
        else:
            outcome.counters = dict(zip(COUNTERS, map(int, values), strict=True))
    return outcome

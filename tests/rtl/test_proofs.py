"""The proofs that lie beside a tile's Verilog: they hold of what is written, and find bugs that are planted in it."""

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import types
from functools import cache
from pathlib import Path

import pytest

from siliconloom.arch import LoomError, load_chip
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.flows.proofs import below
from siliconloom.rtl.formal import check_proof
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu import proofs as stated
from siliconloom.rtl.npu.dma_proofs import QueuePorts
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.tile import NpuTileCircuit
from tests.rtl.npu import npu, quick_chip

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)
KINDS = [
    "registers",
    "fetch",
    "load_offers",
    "load",
    "store",
    "store_beats",
    "store_pace",
    "queue",
    "ports",
    "completion",
]
SLOW = ("load", "load_offers")
ALL = [pytest.param(kind, marks=[pytest.mark.slow(seconds=6)] if kind in SLOW else []) for kind in KINDS]


def tile(chip, reset="sync"):
    return NpuTileCircuit(Library("proof", reset), geometry_of(chip))


def proof_of(top, kind):
    return next(proof for proof in stated.npu_proofs(top) if re.sub(r"_\d+(x\d+)?$", "", proof.name) == kind)


def texts_of(proof):
    """The module under proof and what is below it, as they are written."""
    library, circuit = proof.circuit.library, proof.circuit
    if isinstance(circuit, QueuePorts):
        circuit = Queue(library, circuit.width, circuit.depth)
    library.circuits = {"it": circuit}
    everything = library.verilog(circuit)
    return {name: everything[name] for name in below(proof.circuit, everything)}


@cache
def texts():
    top = tile(quick_chip())
    found = stated.npu_proofs(top)
    return top, top.library.verilog(found[0].circuit)


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("kind", ALL)
def test_a_module_keeps_what_it_promises_in_every_cycle(kind):
    top, written = texts()
    outcome = check_proof(proof_of(top, kind), written)
    assert outcome.proved, str(outcome)


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chip", ["npu-edge-int8", "npu-balanced"])
def test_modules_of_the_library_s_chips_keep_what_they_promise(chip, kind):
    top = tile(load_chip(chip))
    proof = proof_of(top, kind)
    outcome = check_proof(proof, texts_of(proof))
    assert outcome.proved, str(outcome)


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("kind", KINDS)
def test_modules_that_are_reset_at_once_keep_what_they_promise(kind):
    top = tile(quick_chip(), "async_low")
    proof = proof_of(top, kind)
    outcome = check_proof(proof, texts_of(proof))
    assert outcome.proved, str(outcome)


BUGS = {
    "the program is fetched over a page's end": (
        "sequencer",
        "Fetch",
        "m.d.comb += burst.eq(to_page)",
        "m.d.comb += burst.eq(FETCH_BURST)",
        "fetch",
    ),
    "a part of the program is fetched twice": (
        "sequencer",
        "Fetch",
        "address.eq(address + burst * geometry.port_bytes)",
        "address.eq(address + (burst - 1) * geometry.port_bytes)",
        "fetch",
    ),
    "a load asks for a beat too many": (
        "dma",
        "LoadEngine",
        "ask.payload.length.eq(burst.more)",
        "ask.payload.length.eq(burst.more + 1)",
        "load",
    ),
    "a load goes over a page's end": (
        "bursts",
        "LoadEngine",
        "m.d.comb += most.eq(room)",
        "m.d.comb += most.eq(limit - 1)",
        "load",
    ),
    "the second row is the first again": (
        "dma",
        "LoadEngine",
        "(transfer_ends & ~self.unknown)), below.eq(row + pitch)]",
        "(transfer_ends & ~self.unknown)), below.eq(row)]",
        "load",
    ),
    "a load begins at bytes of a beat": (
        "dma",
        "LoadEngine",
        "ask.payload.address.eq(aligned(burst.address, offset))",
        "ask.payload.address.eq(burst.address)",
        "load",
    ),
    "an address is withdrawn": (
        "pace",
        "LoadEngine",
        "return Mux(under, upper[-1] | ~upper.any(),",
        "return Mux(under, ~upper.any(),",
        "load_offers",
    ),
    "the last beat of a store is marked a beat late": (
        "dma",
        "StoreEngine",
        "beat.last.eq(last)",
        "beat.last.eq(burst_last)",
        "store_beats",
    ),
    "a store's row ends a beat late": (
        "dma",
        "StoreEngine",
        'now["left"] <= 2 * bus',
        'now["left"] < 2 * bus',
        "store_beats",
    ),
    "a burst of a store is a beat longer than its address says": (
        "dma",
        "StoreEngine",
        "one_left.eq(Mux(opens, ahead.more == 1,",
        "one_left.eq(Mux(opens, ahead.more == 0,",
        "store_beats",
    ),
    "a store does not look whether there is room": (
        "dma",
        "StoreEngine",
        "room.eq(reserved < self.DEPTH - 1)",
        "room.eq(reserved < self.DEPTH)",
        "store_beats",
    ),
    "a load takes up what is offered while it is busy": (
        "dma",
        "LoadEngine",
        "with m.If(~active | transfer_ends):",
        "with m.If(~active | burst.ends):",
        "load",
    ),
    "a store forgets where its row begins when its last burst begins": (
        "bursts",
        "StoreEngine",
        "m.d.comb += [first.eq(~active | transfer_ends), below.eq(row + pitch)]",
        "m.d.comb += [first.eq(~active | row_ends), below.eq(row + pitch)]",
        "store_beats",
    ),
    "a store leaves a place of its queue empty": (
        "dma",
        "StoreEngine",
        "room.eq(reserved < self.DEPTH - 1)",
        "room.eq(reserved < self.DEPTH - 2)",
        "store_beats",
    ),
    "a store learns a cycle late that a place is free": (
        "dma",
        "StoreEngine",
        "room.eq(1)]",
        "room.eq(reserved < self.DEPTH)]",
        "store_beats",
    ),
    "beats within a row of a store go out without the regulator": (
        "dma",
        "StoreEngine",
        "follows = [pace.is_due(time + slack - one) for slack in (inner, last.slack)]",
        "follows = [pace.is_due(inner - one), pace.is_due(time + last.slack - one)]",
        "store_pace",
    ),
    "a store's first beat has the pace of one within its row": (
        "dma",
        "StoreEngine",
        "first = Mux(is_short, last.new, inner)",
        "first = Mux(is_short, inner, inner)",
        "store_pace",
    ),
    "a store's row of one beat is taken for a longer one": (
        "dma",
        "StoreEngine",
        "is_short = self.instruction.payload.n <= self.geometry.bus",
        "is_short = self.instruction.payload.n < self.geometry.bus",
        "store_pace",
    ),
    "a store's second row follows the first": (
        "bursts",
        "StoreEngine",
        "m.d.sync += [address.eq(below), row.eq(below)]",
        "m.d.sync += [row.eq(below)]",
        "store_beats",
    ),
    "a port is offered a burst again": ("ports", "Ports", ".eq(source.valid & ~taken)", ".eq(source.valid)", "ports"),
    "a port is read before all are there": (
        "ports",
        "Ports",
        "port.rready.eq(beat.valid & beat.ready)",
        "port.rready.eq(beat.ready)",
        "ports",
    ),
    "bytes that are not written go out": (
        "ports",
        "Ports",
        "port.wdata.eq(kept[8 * low : 8 * high])",
        "port.wdata.eq(written.data[8 * low : 8 * high])",
        "ports",
    ),
    "a run starts while one is under way": (
        "registers",
        "Registers",
        "self.start.eq(self.s_axi.wdata[0] & ~self.busy)",
        "self.start.eq(self.s_axi.wdata[0])",
        "registers",
    ),
    "a write is taken before the last one is answered": (
        "registers",
        "Registers",
        "self.s_axi.wvalid & ~self.s_axi.bvalid)",
        "self.s_axi.wvalid)",
        "registers",
    ),
    "the last beat is not marked on its way to a port": (
        "ports",
        "Ports",
        "port.wlast.eq(written.last)",
        "port.wlast.eq(0)",
        "ports",
    ),
    "a beat is there before all ports have it": (
        "ports",
        "Ports",
        "beat.valid.eq(Cat(*(port.rvalid for port in ports)).all())",
        "beat.valid.eq(Cat(*(port.rvalid for port in ports)).any())",
        "ports",
    ),
    "a burst is begun without room for its answer": (
        "dma",
        "StoreEngine",
        "(addresses.i.ready & responses.i.ready)",
        "addresses.i.ready",
        "store_beats",
    ),
    "an event that came early is forgotten": (
        "completion",
        "Completion",
        "(self.pulse | (pending != 0))",
        "self.pulse",
        "completion",
    ),
    "semaphores are given to before the event": (
        "completion",
        "Completion",
        "self.give.eq(Mux(pops, oldest.mask, 0))",
        "self.give.eq(Mux(there, oldest.mask, 0))",
        "completion",
    ),
}
"""File of `rtl/npu`, class, what stands there and what is put in its place, and the proof that finds it."""


def planted(file, old, new, monkeypatch):
    """The module of a file of `rtl/npu` with a bug in it; what imports it anew sees the bug too."""
    name = f"siliconloom.rtl.npu.{file}"
    path = Path(importlib.import_module(name).__file__)
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path.name}"
    module = types.ModuleType(name)
    exec(compile(text.replace(old, new), str(path), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def wrong_of(bug, monkeypatch):
    """What is known of a proof with a planted bug."""
    file, kind, old, new, name = BUGS[bug]
    module = planted(file, old, new, monkeypatch)
    if file == "pace":
        planted("bursts", "def aligned", "def aligned", monkeypatch)
    if file in ("bursts", "pace"):
        module = planted("dma", "DEPTH = 8", "DEPTH = 8", monkeypatch)
    if kind == "LoadEngine":  # loads are made by what is derived from it
        module, kind = planted("gather", "DEPTH = 8", "DEPTH = 8", monkeypatch), "GatherEngine"
    monkeypatch.setattr(stated, kind, getattr(module, kind))
    proof = proof_of(tile(quick_chip()), name)
    return check_proof(proof, texts_of(proof))


def check_bug(bug, monkeypatch):
    outcome = wrong_of(bug, monkeypatch)
    assert outcome.counterexample is not None, str(outcome)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("number", range(3))
def test_a_bug_of_the_day_is_found(number, seed, monkeypatch):
    quick = [bug for bug in BUGS if BUGS[bug][4] not in SLOW]
    check_bug(quick[(3 * seed + number) % len(quick)], monkeypatch)


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found(bug, monkeypatch):
    check_bug(bug, monkeypatch)


CHANGES = {
    "store": [
        ("memory_beat_last = ", "memory_beat_last = 1'h1 | "),
        ("memory_burst_length = ", "memory_burst_length = 1 + "),
    ],
    "queue": [("level + 1'h1", "level + 1'h0"), ("? i_payload : entry_3;", "? i_payload : entry_2;")],
    "registers": [("s_axi_bresp = 2'h0", "s_axi_bresp = 2'h1")],
}
"""What is changed in the Verilog itself, where a module is joined to what is around it."""


@pytest.mark.parametrize(("kind", "old", "new"), [(kind, *each) for kind, some in CHANGES.items() for each in some])
def test_a_change_of_the_verilog_is_found(kind, old, new):
    top, written = texts()
    proof = proof_of(top, kind)
    name = proof.circuit.module_name
    assert old in written[name], written[name]
    outcome = check_proof(proof, {**written, name: written[name].replace(old, new)})
    assert outcome.counterexample is not None


def test_a_place_that_is_not_there_is_told():
    top, written = texts()
    proof = proof_of(top, "fetch")
    changed = {name: text.replace("left", "rest") for name, text in written.items()}
    with pytest.raises(LoomError, match=r"proof_prove_fetch: Yosys: .*checked\.left"):
        check_proof(proof, changed)


def test_proofs_lie_in_the_folder_and_its_makefile_runs_them(tmp_path):
    bundle = npu()
    bundle.write(tmp_path / "out")
    made = subprocess.run(["make", "-n", "formal"], cwd=tmp_path / "out", capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    scripts = sorted(name for name in bundle.files if name.endswith(".ys"))
    assert len(scripts) >= len(KINDS)
    for name in scripts:
        assert name in made.stdout
        modules = [line.split()[-1] for line in bundle.files[name].splitlines() if line.startswith("read_verilog")]
        assert modules[-1] == name.replace(".ys", ".v")
        assert set(modules) <= set(bundle.files)
    assert "make formal" in bundle.files["README.md"]


@pytest.mark.slow(seconds=1)
def test_a_design_without_proofs_says_so(tmp_path):
    build_rtl(load_chip("systolic-ws-8", [("tile.array.rows", "2"), ("tile.array.cols", "2")])).write(tmp_path / "out")
    made = subprocess.run(["make", "formal"], cwd=tmp_path / "out", capture_output=True, text=True)
    assert made.returncode != 0
    assert "not supported: proofs of systolic_ws_8" in made.stderr


@pytest.mark.slow(seconds=20)
@pytest.mark.skipif(
    not shutil.which("make") or not (shutil.which("yosys") and shutil.which("yosys-smtbmc")),
    reason="no Yosys with smtbmc",
)
def test_the_makefile_proves_and_a_changed_file_fails(tmp_path, monkeypatch):
    solver = Path(sys.executable).parent  # z3 comes with the package z3-solver
    monkeypatch.setenv("PATH", f"/usr/bin:{solver}:/bin")
    folder = tmp_path / "out"
    bundle = build_rtl(quick_chip(), remembered=True)
    bundle.write(folder)
    proofs = [f"formal/build/{bundle.top}_prove_{name}.proved" for name in ("registers", "store", "ports")]
    made = subprocess.run(["make", *proofs], cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    bundle.write(folder)  # what the proofs left is the user's, and stays
    assert (folder / proofs[0]).exists()
    registers = folder / f"{bundle.top}_registers.v"
    text = registers.read_text()
    changed = text.replace("s_axi_arready =", "s_axi_arready = 1 |")
    assert changed != text
    registers.write_text(changed)
    made = subprocess.run(["make", proofs[0]], cwd=folder, capture_output=True, text=True)
    assert made.returncode != 0
    assert "Assert failed" in made.stdout
    registers.write_text(f"{text}garbage")  # what does not parse does not keep an older proof
    made = subprocess.run(["make", proofs[0]], cwd=folder, capture_output=True, text=True)
    assert made.returncode != 0
    assert "syntax error" in made.stdout
    assert not (folder / proofs[0]).exists()


def test_a_bus_of_one_byte_is_refused():
    narrow = [("tile.dma.bytes_per_cycle", "1"), ("tile.array.load_rows", "1")]
    with pytest.raises(LoomError, match=r"not supported: RTL of a DMA with tile\.dma\.bytes_per_cycle below 2"):
        geometry_of(load_chip("npu-edge-int8", narrow))

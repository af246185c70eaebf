"""Chips of a ring: their Verilog, and four of them computing a block together."""

import shutil
import subprocess

import pytest
from msgspec.structs import replace

from siliconloom.arch import NotSupported
from siliconloom.arch.chip_ring import load_ring, ring_parts
from siliconloom.cli import main
from siliconloom.rtl.bench.ring_tiles import run_tile_cases
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.library import Library
from siliconloom.rtl.link.design import ring_chip
from siliconloom.rtl.link.node import RingNode
from siliconloom.rtl.npu.design import WAIVERS
from siliconloom.verification.emission import complete_rtl
from siliconloom.verification.link import compare_block, mlp_blocks

pytestmark = pytest.mark.rtl
verilator = pytest.mark.skipif(simulator_path("verilator") is None, reason="Verilator is not installed")


def lint(folder, files, waivers):
    tool = f"{simulator_path('verilator')}/verilator"
    found = subprocess.run([tool, "--lint-only", "-Wall", waivers, *files], cwd=folder, capture_output=True, text=True)
    assert found.stderr == ""
    if shutil.which("iverilog"):
        assert subprocess.run(["iverilog", "-g2012", "-o", "/dev/null", *files], cwd=folder).returncode == 0


@pytest.mark.slow(seconds=1.5)
@verilator
@pytest.mark.parametrize("reset", ["sync", "async_low"])
def test_links_and_engines_are_clean_verilog(tmp_path, reset):
    _, engine, protocol, chips = ring_parts(load_ring("npu-x4-ring", []))
    library = Library("ring", reset)
    node = library.make(RingNode, chips, engine, protocol)
    texts = library.verilog(node)
    for name, text in texts.items():
        (tmp_path / f"{name}.v").write_text(text)
    rules = "".join(f"lint_off -rule {rule}\n" for rule in WAIVERS)
    (tmp_path / "rules.vlt").write_text(f"`verilator_config\n{rules}")
    top = node.module_name
    lint(tmp_path, [f"{top}.v", *sorted(f"{name}.v" for name in texts if name != top)], "rules.vlt")


@verilator
@pytest.mark.slow
def test_the_chip_of_the_library_ring_is_written_whole_and_clean(tmp_path):
    bundle = complete_rtl(load_ring("npu-x4-ring", []))
    bundle.write(tmp_path / "out")
    assert bundle.top == "npu_x4_ring_chip"
    assert {
        "npu_x4_ring_link_sender.v",
        "npu_x4_ring_link_receiver.v",
        "npu_x4_ring_ring_engine.v",
        "npu_x4_ring_store_tracker.v",
    } <= set(bundle.sidecar["verilog"])
    assert all(port["meaning"] for port in bundle.sidecar["ports"])
    lint(tmp_path / "out", bundle.sidecar["verilog"], "npu_x4_ring.vlt")


@verilator
@pytest.mark.slow
def test_four_chips_compute_a_block_in_the_models_cycles(tmp_path):
    chip, engine, protocol, chips = ring_parts(load_ring("npu-x4-ring", []))
    blocks = mlp_blocks(chip, engine, protocol, chips, 11)
    outcomes = run_tile_cases(chip, engine, protocol, chips, [b.case for b in blocks], folder=tmp_path)
    for block, found in zip(blocks, outcomes, strict=True):
        parity = compare_block(chip, engine, protocol, block, found)
        assert parity.value_errors + parity.cycle_errors == []
        assert parity.rtl_cycles == parity.model_cycles < parity.sequential_cycles
    retries = [sum(chip.counters["retries"] for chip in found) for found in outcomes]
    assert retries[0] == retries[1] == 0 < retries[2]
    # one cycle of difference in one chip's start is found
    wrong = compare_block(chip, engine, protocol, shifted(blocks[0]), outcomes[0])
    assert wrong.divergence.stream == "chip 2, start of the tile's run"
    assert not wrong.case().passed


def shifted(block):
    starts = [start + (rank == 2) for rank, start in enumerate(block.case.tile_starts)]
    return replace(block, case=replace(block.case, tile_starts=starts))


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        ([("protocol.flit_bits", "128"), ("link.bandwidth", "16 GB/s")], "128-bit flits on a memory of 8-byte"),
        ([("chip.tile.dma.port_bytes", "4")], "tracking the stores of 2 data ports"),
        ([("chip.tile.array.operands", "bf16")], "bf16"),
    ],
)
def test_chips_without_a_ring_in_rtl_are_refused(sets, text):
    chip, engine, protocol, chips = ring_parts(load_ring("npu-x4-ring", sets))
    with pytest.raises(NotSupported, match=text):
        ring_chip(Library("ring"), chip, engine, protocol, chips)


@pytest.mark.parametrize("command", [["verify", "neupims"], ["rtl", "neupims", "-o", "out"]])
def test_systems_without_rtl_get_one_line(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert "the RTL of neupims: it needs protocol (of the link) and ring (the engine)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

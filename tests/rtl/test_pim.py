"""The PIM tile's RTL against the simulator, command by command, and against the golden model, bit by bit."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from siliconloom.arch import NotSupported, load_chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.pim import Command, MacroKind
from siliconloom.arch.verified import read_verified
from siliconloom.cli import main
from siliconloom.mapper.pim.layout import plan_gemv
from siliconloom.rtl.bench.pim_cases import run_pim_cases
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.golden.pim import GoldenPim
from siliconloom.verification.pim import check_pim_cases, compare, pim_cases
from siliconloom.verification.pim_cases import attention_cases, gemv_case, random_case
from tests.sim.pim_tiles import random_pim

TILES, CASES = 10, 4
MORE = 8
"""Further tiles a day, by the seed of the day."""
SMALL = [
    (f"tile.{key}", value)
    for key, value in (
        ("dram.organization.bank_groups", "2"),
        ("dram.organization.banks", "2"),
        ("dram.organization.rows", "64"),
        ("dram.organization.columns", "32"),
        ("dram.organization.bus_bits", "32"),
        ("lanes", "4"),
        ("global_buffer", "512 B"),
        ("dram.timing.tREFI", "700"),
    )
]
VARIANTS = {
    "as described": (),
    "blocked": (("tile.dual_row_buffer", "false"),),
    "refreshes that are always late": (("tile.dram.timing.tREFI", "48"), ("tile.dram.timing.tRFC", "30")),
    "per bank": (("tile.commands", "per_bank"),),
    "groups of one, one machine": (("tile.activate_group", "1"), ("tile.bank_machines", "1")),
    "groups of two, two ranks": (("tile.activate_group", "2"), ("tile.dram.organization.ranks", "2")),
    "one bank group, several beats": (
        ("tile.dram.organization.bank_groups", "1"),
        ("tile.lanes", "1"),
        ("tile.activate_group", "2"),
    ),
}
pytestmark = pytest.mark.rtl


def needs(simulator):
    if simulator_path(simulator) is None:
        pytest.skip(f"{simulator} is not installed")


def told(parity):
    return "\n".join([parity.name, *parity.errors])


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_command_and_value_agrees(variant, seed):
    needs("icarus")
    chip = load_chip("pim-hbm", [*SMALL, *VARIANTS[variant]])
    found = check_pim_cases(chip, pim_cases(chip.tile, 1000 * seed, 6)[0], simulator="icarus")
    for parity in found:
        assert parity.passed, told(parity)
    seen = set().union(*({c[1] for c in p.outcome.commands} for p in found))
    assert seen == set(Command), "every command went out, refresh among them"


@pytest.mark.slow
@pytest.mark.parametrize("tile", range(TILES))
def test_random_tiles_agree(tile, seed):
    needs("icarus")
    chip = random_pim(1000 * seed + tile)
    cases = [random_case(chip.tile, 1000 * seed + number) for number in range(CASES)]
    for parity in check_pim_cases(chip, cases, simulator="icarus"):
        assert parity.passed, told(parity)


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("tile", range(TILES, TILES + MORE))
def test_more_random_tiles_agree(tile, seed):
    needs("icarus")
    chip = random_pim(1000 * seed + tile)
    cases, notes = pim_cases(chip.tile, 1000 * seed + tile, 4)
    assert all("must be in" in note for note in notes)
    for parity in check_pim_cases(chip, cases, simulator="icarus"):
        assert parity.passed, told(parity)


def test_random_tiles_differ_in_everything_that_matters():
    tiles = [random_pim(number).tile for number in range(TILES)]
    for name in ("commands", "activate_group", "dual_row_buffer", "bank_machines", "beats"):
        assert len({getattr(t, name) for t in tiles}) > 1, name
    assert {t.dram.organization.ranks for t in tiles} == {1, 2}
    assert {d for t in tiles for d in t.operands} == {DataType.BF16, DataType.INT8}


def test_an_attention_head_is_attention():
    """What leaves the tile, by way of the golden model that it equals, is attention within the error of bf16."""
    tile = load_chip("pim-hbm", SMALL).tile
    (_, second), exact = attention_cases(tile, 40, 24, 5)
    machine = GoldenPim(tile, {key: row.copy() for key, row in second.memory.items()})
    machine.run(second.macros, second.written, second.vectors)
    layout = plan_gemv(tile, 24, 40, DataType.BF16)
    values = layout.collect(machine.results)[0]
    assert np.abs(values - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.slow(seconds=3)
def test_a_tile_that_differs_from_its_description_is_found_out(tmp_path):
    """One cycle more between activations: late, but right; and a wrong bit: wrong, but in time."""
    needs("icarus")
    sets = [*SMALL, ("tile.activate_group", "2")]
    tile = load_chip("pim-hbm", sets).tile
    bundle = build_rtl(load_chip("pim-hbm", [*sets, ("tile.dram.timing.tRRD_L", "7")]))
    case, _ = gemv_case(tile, 9, 80, DataType.BF16, 1)
    (outcome,) = run_pim_cases(
        tile,
        bundle.write(tmp_path / "rtl"),
        bundle.top,
        bundle.ports,
        [case],
        folder=tmp_path / "bench",
        simulator="icarus",
    )
    parity = compare(tile, case, outcome)
    assert not parity.passed
    assert parity.value_errors == []
    assert "<--" in told(parity)
    cycle, burst = outcome.results[0]
    outcome.results[0] = (cycle, burst ^ np.uint8(1))
    assert any("burst 0 of results, byte 0" in error for error in compare(tile, case, outcome).value_errors)


@pytest.mark.slow(seconds=3.5)
def test_a_tile_with_too_short_a_timing_breaks_the_arrays_rules(tmp_path):
    needs("icarus")
    described = load_chip("pim-hbm", SMALL)
    hasty = load_chip("pim-hbm", [*SMALL, ("tile.dram.timing.tRCD", "9"), ("tile.dram.timing.tRP", "13")])
    bundle = build_rtl(hasty)
    case = random_case(described.tile, 3, transfers=8)
    (outcome,) = run_pim_cases(
        described.tile,
        bundle.write(tmp_path / "rtl"),
        bundle.top,
        bundle.ports,
        [case],
        folder=tmp_path / "bench",
        simulator="icarus",
    )
    assert any("tRCD" in rule for rule in outcome.broken)


@pytest.mark.slow(seconds=2)
def test_data_that_are_not_there_are_reported(tmp_path):
    needs("icarus")
    chip = load_chip("pim-hbm", SMALL)
    bundle = build_rtl(chip)
    case = random_case(chip.tile, 2, transfers=0)
    assert case.macros[0].kind == MacroKind.GWRITE
    starved = replace(case, vectors=())
    (outcome,) = run_pim_cases(
        chip.tile,
        bundle.write(tmp_path / "rtl"),
        bundle.top,
        bundle.ports,
        [starved],
        folder=tmp_path / "bench",
        simulator="icarus",
    )
    assert outcome.underrun


@pytest.mark.slow
def test_the_library_chip_is_verified_from_the_command_line(capsys):
    needs("verilator")
    status = main(["verify", "pim-hbm", "--seed", "3", "--json", "-"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert result["passed"]
    assert [c["difference"] for c in result["cases"]] == [0] * 15
    assert all(c["values_equal"] for c in result["cases"])
    assert read_verified(result).totals.commands > 2500


@pytest.mark.slow(seconds=4)
def test_a_small_tile_is_verified_with_a_table(capsys):
    needs("icarus")
    sets = [word for key, value in SMALL for word in ("--set", f"{key}={value}")]
    assert main(["verify", "pim-hbm", *sets, "--simulator", "icarus", "--cases", "2"]) == 0
    assert "passed: every value equal" in capsys.readouterr().out


@pytest.mark.slow(seconds=2)
def test_a_mismatch_ends_the_command_with_status_one(monkeypatch, capsys, tmp_path):
    needs("icarus")
    slower = build_rtl(load_chip("pim-hbm", [*SMALL, ("tile.dram.timing.tRAS", "35")]))
    monkeypatch.setattr("siliconloom.verification.pim.build_rtl", lambda chip: slower)
    sets = [word for key, value in SMALL for word in ("--set", f"{key}={value}")]
    path = tmp_path / "v.json"
    assert main(["verify", "pim-hbm", *sets, "--simulator", "icarus", "--cases", "2", "--json", str(path)]) == 1
    said = capsys.readouterr()
    assert "FAILED" in said.out
    assert "first difference: command" in " ".join(said.out.split())
    record = read_verified(json.loads(path.read_text()))
    assert not record.passed
    found = next(c for c in record.cases if c.divergence).divergence
    assert found.stream == "command"
    here = next(m for m in found.around if m.number == found.number)
    assert here.model != here.rtl
    assert here.model.what.split()[0] in Command.__members__


@pytest.mark.slow
@pytest.mark.parametrize("tile", range(3))
@pytest.mark.parametrize("name", ["verilator", "iverilog"])
def test_random_tiles_are_accepted_by_other_tools(name, tile, tmp_path):
    bundle = build_rtl(random_pim(tile))
    bundle.write(tmp_path / "rtl")
    if name == "verilator":
        needs("verilator")
        program = str(Path(simulator_path("verilator")) / "verilator")
        command = [program, "--lint-only", "-Wall", "--top-module", bundle.top, f"{bundle.top}.vlt"]
    else:
        needs("icarus")
        command = [shutil.which("iverilog"), "-g2012", "-Wall", "-Wno-timescale", "-o", "/dev/null", "-s", bundle.top]
    done = subprocess.run([*command, "-f", f"{bundle.top}.f"], cwd=tmp_path / "rtl", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "%Warning" not in done.stderr
    assert name == "verilator" or done.stderr == ""


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("tile.operands", "[fp16]", "RTL of bank-side lanes for fp16 operands"),
        ("tile.channels", "8", "RTL of 8 channels in one module"),
        ("tile.dram.controller.refresh", "bank", "per-bank refresh of a pim tile"),
        ("tile.dram.timing.CL", "1", "CL below 2"),
    ],
)
def test_what_has_no_circuits_is_not_supported(key, value, told):
    with pytest.raises(NotSupported, match=told):
        build_rtl(load_chip("pim-hbm", [(key, value)]))

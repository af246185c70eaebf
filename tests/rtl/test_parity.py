"""Values and cycles of the generated Verilog against NumPy and against the simulator's timing."""

import json
import random
import re

import pytest
from msgspec.structs import replace

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.verified import read_verified
from siliconloom.cli import main
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.rtl.array.folds import FoldTime
from siliconloom.rtl.bench.runner import run_cases, simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.chip.engine import duration
from siliconloom.verification.array import compare, random_cases
from siliconloom.verification.machine import verify
from siliconloom.workloads import load_workload
from tests.in_turn import in_turn

pytestmark = pytest.mark.rtl


def need(simulator):
    if simulator_path(simulator) is None:
        pytest.skip(f"{simulator} is not installed")


OPERANDS = ["int8", "int16", "int4", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"]


def random_chip(seed):
    """A small array with random parameters."""
    chance = random.Random(seed)
    dataflow = ("ws", "os", "is")[seed % 3]
    load_rows = chance.choice([1, 1, 2, 3]) if dataflow != "os" else 1
    return load_chip(
        f"systolic-{dataflow}-8",
        [
            ("tile.array.load_rows", str(load_rows)),
            ("tile.array.rows", str(load_rows * chance.randint(1, 4))),
            ("tile.array.cols", str(chance.randint(1, 9))),
            ("tile.array.multiply_stages", str(chance.randint(0, 3))),
            ("tile.array.add_stages", str(chance.choice([0, 0, 1, 2, 3]) if dataflow != "os" else 0)),
            ("tile.array.operands", chance.choice(OPERANDS)),
        ],
    )


def run(chip, cases, simulator, folder, mutate=None):
    made = build_rtl(chip)
    sources = made.write(folder / "rtl")
    if mutate is not None:
        mutate(folder / "rtl", made.top)
    results = run_cases(
        chip.tile.array, sources, made.top, made.ports, cases, simulator=simulator, folder=folder / "bench"
    )
    return [compare(result) for result in results]


def failures(parities):
    return [error for each in parities for error in each.errors]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(18))
def test_random_arrays_on_icarus(number, tmp_path):
    need("icarus")
    chip = random_chip(number)
    parities = run(chip, random_cases(chip.tile.array, number, 10), "icarus", tmp_path)
    assert failures(parities) == []
    assert sum(p.stalled for p in parities) == 5
    assert all(p.result.folds and p.bytes_compared for p in parities)
    assert all(p.stalled or p.times_compared == 2 * len(p.result.folds) for p in parities)


@pytest.mark.slow
def test_random_arrays_on_verilator(seed, tmp_path):
    """One of three dataflows a day, of another size each."""
    need("verilator")
    chip = random_chip(100 + seed)
    assert failures(run(chip, random_cases(chip.tile.array, 100 + seed, 12), "verilator", tmp_path)) == []


@pytest.mark.slow
def test_library_arrays_on_verilator(seed, tmp_path):
    """One of two a day."""
    need("verilator")
    chip = load_chip(("systolic-ws-32", "systolic-os-32")[seed % 2])
    cases = random_cases(chip.tile.array, random.Random(str(seed)).randrange(1000), 6)
    assert failures(run(chip, cases, "verilator", tmp_path)) == []


@pytest.mark.slow
def test_both_simulators_see_the_same_cycles(seed, tmp_path):
    """One of two dataflows a day, the one that the library's arrays of the day do not have."""
    need("icarus")
    need("verilator")
    chip = load_chip(("systolic-os-8", "systolic-ws-8")[seed % 2], [("tile.array.rows", "3"), ("tile.array.cols", "4")])
    cases = random_cases(chip.tile.array, 5, 4)
    first, second = (run(chip, cases, s, tmp_path / s) for s in ("icarus", "verilator"))
    assert [p.result.folds for p in first] == [p.result.folds for p in second]


MUTATIONS = [
    ("systolic-ws-8", "int8", "element_inner_chained", "sum + ", "sum - "),
    ("systolic-ws-8", "int8", "element_inner_chained", "? swap :", "? 1'h0 :"),
    ("systolic-os-8", "int8", "element_inner_chained", "$signed(a)", "a"),
    ("systolic-ws-8", "int8", "", "en & shadow_full", "en | shadow_full"),
    ("systolic-ws-8", "int16", "element_inner_chained", "sum + ", "sum[31:0] + "),
    ("systolic-ws-8", "bf16", "element_inner_chained", "clear ? 16'h0000", "1'h0 ? 16'h0000"),
    ("systolic-ws-8", "bf16", "element_inner_chained", "sum_normal[25:3] +", "sum_normal[25:3] -"),
    ("systolic-is-8", "fp16", "widening_fp16", "7'h70", "7'h6f"),
    ("systolic-os-8", "fp8_e4m3", "widening_fp8_e4m3", "? 8'hff :", "? 8'hfe :"),
]


@pytest.mark.parametrize(("name", "operands", "module", "old", "new"), in_turn(MUTATIONS, 16, seconds=2.5))
def test_a_planted_fault_is_found(name, operands, module, old, new, tmp_path):
    """A bench that cannot fail is worth nothing: change one operator in the Verilog, and it must be seen."""
    need("icarus")
    chip = load_chip(name, [("tile.array.operands", operands)])

    def plant(folder, top):
        path = folder / ("_".join(filter(None, [top, module])) + ".v")
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new))

    assert failures(run(chip, random_cases(chip.tile.array, 2, 6), "icarus", tmp_path, plant))


@pytest.mark.slow(seconds=1.5)
def test_a_wrong_prediction_is_found(tmp_path):
    need("icarus")
    chip = load_chip("systolic-ws-8", [("tile.array.rows", "2"), ("tile.array.cols", "2")])
    case = random_cases(chip.tile.array, 0, 1)[0]
    late = tuple(FoldTime(t.first_output, t.last_output + 1) for t in case.schedule)
    (parity,) = run(chip, [replace(case, schedule=late)], "icarus", tmp_path)
    assert not parity.passed
    assert parity.value_errors == []
    assert (parity.divergence.stream, parity.divergence.number) == ("fold", 0)
    moment = parity.divergence.around[0]
    assert (moment.model.end, moment.rtl.end) == (late[0].last_output, late[0].last_output - 1)


def test_verify_reports_and_fails_by_exit_status(capsys, monkeypatch, tmp_path):
    need("icarus")
    command = [
        "verify",
        "systolic-os-8",
        "--set",
        "tile.array.rows=5",
        "--seed",
        "3",
        "--simulator",
        "icarus",
        "--cases",
        "4",
    ]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "5 x 8 output stationary" in out
    assert "0 cycles of difference" in out
    from siliconloom.verification import array as module

    right = module.stall_free_schedule
    monkeypatch.setattr(module, "stall_free_schedule", lambda array, folds: right(array, [*folds[1:], folds[0]]))
    path = tmp_path / "v.json"
    assert main([*command, "--json", str(path)]) == 1
    captured = capsys.readouterr()
    assert "RTL and model disagree" in captured.err
    assert "FAILED: " in captured.out
    assert re.search(r"first difference: fold \d+", captured.out)
    record = read_verified(json.loads(path.read_text()))
    assert not record.passed
    assert {c.divergence.stream for c in record.cases if not c.passed} == {"fold"}


@pytest.mark.slow(seconds=2.5)
@pytest.mark.parametrize(("name", "dtype"), [("systolic-ws-8", "bf16"), ("systolic-os-8", "int8")])
def test_the_products_of_loom_sim_run_on_a_bare_array(name, dtype, tmp_path):
    """What `loom sim` calls proven runs: every fold of the list, in the cycles that it prints."""
    need("icarus")
    chip = load_chip(name, [("tile.array.operands", dtype), ("tile.array.rows", "3"), ("tile.array.cols", "4")])
    file = tmp_path / "list.yaml"
    gemms = "[{name: a, m: 5, n: 9, k: 7, repeat: 2}, {name: b, m: 1, n: 4, k: 3}]"
    file.write_text(f"kind: gemms\nprecision: {dtype}\ngemms: {gemms}\n")
    work = map_workload(chip, load_workload(str(file)))
    record = verify(chip, simulator="icarus", workload=work)
    assert record.passed
    assert len(record.cases[0].array.gemms) == 3
    assert record.cases[0].model_cycles == duration(work.program, chip)


@pytest.mark.slow(seconds=2.5)
def test_verification_repeats_for_a_seed():
    need("icarus")
    chip = load_chip("systolic-is-8", [("tile.array.rows", "2"), ("tile.array.cols", "3")])
    first, second = (verify(chip, seed=9, simulator="icarus", cases=3) for _ in range(2))
    assert first.passed
    assert first.model_copy(update={"time": second.time}) == second


def test_a_missing_simulator_says_what_to_install(monkeypatch):
    from siliconloom.rtl.bench import runner

    monkeypatch.setattr(runner, "simulator_path", lambda _: None)
    with pytest.raises(LoomError, match=r"icarus is not installed: .*apt-get install iverilog"):
        runner.require_simulator("icarus")


@pytest.mark.slow(seconds=1)
def test_verilog_that_a_simulator_refuses_is_one_clear_line(tmp_path):
    need("icarus")
    chip = load_chip("systolic-ws-8", [("tile.array.rows", "2"), ("tile.array.cols", "2")])

    def spoil(folder, top):
        (folder / f"{top}.v").write_text("module nothing here;\n")

    with pytest.raises(LoomError, match="the build failed") as caught:
        run(chip, random_cases(chip.tile.array, 0, 1), "icarus", tmp_path, spoil)
    assert "\n" not in str(caught.value)

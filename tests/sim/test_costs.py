import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch import memo as module
from siliconloom.arch.isa import Instruction, Opcode, Program, Semaphore
from siliconloom.arch.memo import Answers
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip.costs import CostService, cost_key
from siliconloom.sim.chip.engine import Run, run
from siliconloom.workloads import load_workload
from tests.sim.programs import chips, programs

END = Instruction(opcode=Opcode.END)


def product(m):
    return Program((Instruction(opcode=Opcode.MATMUL, m=m, n=8, k=8), END))


def equal(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in Run.__struct_fields__ if name != "wall_s")


def outcome(work):
    """What it returns, or the words of its error."""
    try:
        return work()
    except LoomError as error:
        return str(error)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(programs(), chips())
def test_an_answer_is_the_run_wherever_it_comes_from(tmp_path_factory, program, chip):
    folder = tmp_path_factory.mktemp("costs")
    expected = outcome(lambda: run(program, chip))
    if isinstance(expected, str):
        assert outcome(lambda: CostService(folder).cost(program, chip)) == expected
        assert list(folder.rglob("*.*")) == []
        return
    first, second = CostService(folder), CostService(folder)
    assert all(equal(service.cost(program, chip), expected) for service in (first, first, second, CostService(None)))
    assert first.answers == Answers(found=1, remembered=1)
    assert second.answers == Answers(read=1)


@pytest.mark.slow(seconds=1)
def test_chips_that_do_the_same_are_simulated_once(tmp_path):
    service, chip = CostService(tmp_path), load_chip("npu-edge-int8")
    requests = [(product(m), load_chip("npu-edge-int8")) for m in (8, 16) * 500]
    answers = service.costs(requests)
    assert service.answers == Answers(found=2, remembered=998)
    assert [a.cycles for a in answers[:2]] == [run(product(m), chip).cycles for m in (8, 16)]
    assert len(list(tmp_path.rglob("*.memo"))) == 2


def test_a_key_is_of_everything_the_outcome_depends_on(monkeypatch):
    chip, program = load_chip("npu-edge-int8"), product(8)
    keys = {
        cost_key(program, chip),
        cost_key(product(9), chip),
        cost_key(program, load_chip("npu-edge-int8", [("memory.dram.latency", "101 ns")])),
        cost_key(Program(program.instructions, (Semaphore("full", 1),)), chip),
        cost_key(Program(program.instructions, (Semaphore("full", 0),)), chip),
        cost_key(Program(program.instructions, (Semaphore("full", 0, "buffer"),)), chip),
        cost_key(Program(program.instructions, (), ("a", "b")), chip),
    }
    monkeypatch.setattr(module, "code_digest", lambda: "another version")
    keys.add(cost_key(program, chip))
    assert len(keys) == 8


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 cut off", None])
def test_a_damaged_file_counts_as_absent_and_is_written_again(tmp_path, damage):
    chip, program = load_chip("npu-edge-int8"), product(8)
    expected = CostService(tmp_path).cost(program, chip)
    (path,) = tmp_path.rglob("*.memo")
    whole = path.read_bytes()
    path.write_bytes(damage if damage is not None else whole[: len(whole) // 2] + b"\0" + whole[len(whole) // 2 + 1 :])
    service = CostService(tmp_path)
    assert equal(service.cost(program, chip), expected)
    assert equal(CostService(tmp_path).cost(program, chip), expected)


def test_a_file_under_another_ones_name_counts_as_damaged(tmp_path):
    chip = load_chip("npu-edge-int8")
    expected = [CostService(tmp_path).cost(product(m), chip) for m in (8, 16)]
    paths = [next(tmp_path.rglob(f"{cost_key(product(m), chip)}.memo")) for m in (8, 16)]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    service = CostService(tmp_path)
    assert all(equal(service.cost(product(m), chip), e) for m, e in zip((8, 16), expected, strict=True))
    assert service.answers == Answers(found=2)


@pytest.mark.slow(seconds=1)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_byte_is_damaged_the_answer_is_right_or_absent(tmp_path_factory, flips):
    folder, chip, program = tmp_path_factory.getbasetemp() / "damaged", load_chip("npu-edge-int8"), product(8)
    shutil.rmtree(folder, ignore_errors=True)
    expected = CostService(folder).cost(program, chip)
    (path,) = folder.rglob("*.memo")
    content = bytearray(path.read_bytes())
    for place, value in flips:
        content[int(place * len(content))] = value
    path.write_bytes(content)
    found = CostService(folder)._read(cost_key(program, chip))
    assert found is None or equal(Run(**found), expected)
    assert path.exists() == (found is not None)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path):
    (tmp_path / "file").write_text("")
    service = CostService(tmp_path / "file" / "below")
    assert service.cost(product(8), load_chip("npu-edge-int8")).cycles > 0


def test_the_oldest_files_go_first(tmp_path, monkeypatch):
    chip = load_chip("npu-edge-int8")
    for m in range(1, 9):
        CostService(tmp_path).cost(product(m), chip)
    paths = sorted(tmp_path.rglob("*.memo"))
    for age, path in enumerate(paths):
        os.utime(path, (age, age))
    monkeypatch.setattr(module, "KEPT_BYTES", sum(p.stat().st_size for p in paths[4:]))
    CostService(tmp_path).cost(product(100), chip)
    assert [p.exists() for p in paths] == [False] * 4 + [True] * 4


def _fill(folder, seed):
    chip, service = load_chip("npu-edge-int8"), CostService(folder)
    order = np.random.default_rng(seed).permutation(60)
    return {int(m): service.cost(product(1 + int(m)), chip).cycles for m in order}


@pytest.mark.slow(seconds=2.5)
def test_processes_share_a_folder(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(_fill, [(tmp_path, seed) for seed in range(4)])
    chip = load_chip("npu-edge-int8")
    assert all(answer == {m: run(product(1 + m), chip).cycles for m in range(60)} for answer in found)
    assert {p.suffix for p in tmp_path.glob("*/*")} == {".memo"}
    reader = CostService(tmp_path)
    for m in range(60):
        reader.cost(product(1 + m), chip)
    assert reader.answers == Answers(read=60)


@pytest.mark.slow(seconds=2)
def test_a_process_that_is_killed_leaves_no_half_entry(tmp_path):
    fill = "import sys; from tests.sim.test_costs import _fill"
    code = fill + "\nfor seed in range(10**6): _fill(sys.argv[1] + f'/{seed}', 0)"
    for pause in (0.05, 0.3):
        folder = tmp_path / str(pause)
        process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
        while not list(folder.rglob("*.memo")):
            time.sleep(0.01)
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.wait()
        written = list(folder.rglob("*.memo"))
        assert written
        for path in written:
            assert set(CostService(path.parents[1])._read(path.stem)) == set(Run.__struct_fields__)


@pytest.mark.slow(seconds=1)
def test_simulations_share_costs(tmp_path):
    service, sets = CostService(tmp_path), [("workload.layers", "2"), ("workload.sequence", "64")]
    first, second = (simulate("npu-edge-int8", "gpt2", sets, costs=service) for _ in range(2))
    assert service.answers == Answers(found=1, remembered=1)
    assert equal(first.run, second.run)


@pytest.mark.slow(seconds=1)
def test_a_search_never_loses_to_the_estimate():
    chip = load_chip("npu-edge-int8")
    graph = load_workload("gpt2", [("phase", "decode"), ("layers", "2"), ("context", "300")])
    service = CostService(None)
    searched = map_workload(chip, graph, lambda p: service.cost(p, chip).cycles)
    found, estimated = (run(plan.program, chip).cycles for plan in (searched, map_workload(chip, graph)))
    assert found <= estimated
    assert service.answers.found > 1

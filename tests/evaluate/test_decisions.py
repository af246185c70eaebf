"""Mappings that are remembered are those that a search finds, program by program, whoever found them first."""

import json
import os
import random
import shutil
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace

import siliconloom
from siliconloom.arch import DataType, LoomError, load_chip, memo
from siliconloom.arch.vector import FunctionSpec
from siliconloom.cli import main
from siliconloom.evaluate import decisions, objectives, timed
from siliconloom.evaluate.chip import mapped_to, simulate
from siliconloom.evaluate.mapping import plan_summary
from siliconloom.evaluate.objectives import map_for
from siliconloom.mapper.chip.budget import Budget
from siliconloom.mapper.chip.chosen import SearchEffort
from siliconloom.mapper.chip.decided import decision_of, mapped_as
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import Graph, Phase, Vector, load_workload
from siliconloom.workloads.dataflow import Dataflow
from tests.arch.test_functions import registered
from tests.in_turn import in_turn
from tests.mapper.chip.improvements import made_chip, random_chip, random_workload, workload
from tests.mapper.chip.test_block_rows import TIGHT, small_llama

NAMED = [
    ("npu-edge", "gpt2", ("layers=1", "sequence=64")),
    ("npu-datacenter", "llama3-8b", ("layers=2", "phase=decode", "context=300")),
    ("tpu-v4", "mixtral-8x7b", ("layers=1", "sequence=128")),
    ("npu-edge-int8", "t5-base", ("layers=1", "sequence=40")),
    ("npu-edge", "mamba-2.8b", ("layers=1", "sequence=40")),
    ("npu-edge-int8", "vit-base", ("layers=1",)),
]


def same(made, found):
    assert made.program == found.program
    for name in ("tasks", "layout", "memory_bytes", "bound", "notes", "results", "apart", "objective", "short"):
        if name == "tasks":
            assert [each.tiling for each in made.tasks] == [each.tiling for each in found.tasks]
            assert [(each.tiles, each.cut, each.runs) for each in made.tasks] == [
                (each.tiles, each.cut, each.runs) for each in found.tasks
            ]
        else:
            assert getattr(made, name) == getattr(found, name), name
    assert made.searched.tasks == found.searched.tasks
    assert made.searched.remembered
    assert not found.searched.remembered


def held(chip, graph):
    found = map_workload(chip, graph, Stopwatch(chip), search=False)
    decided = decision_of(found)
    if decided is None:
        return False
    same(mapped_as(decided, chip, fit_precision(chip, graph)[0]), found)
    return True


@pytest.mark.parametrize("number", in_turn(range(60), 12, seconds=1))
def test_what_was_decided_is_the_same_program_again(number, seed):
    r = random.Random(f"{seed} {number}")
    while True:
        try:
            assert held(made_chip(random_chip(r)), workload(random_workload(r)))
        except LoomError:
            continue
        break


@pytest.mark.parametrize(("chip", "graph", "sets"), in_turn(NAMED, 2, seconds=2))
def test_models_are_the_same_programs_again(chip, graph, sets):
    assert held(load_chip(chip), load_workload(graph, [tuple(each.split("=")) for each in sets]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files in a folder of their own, and a new process's memory whenever it is called."""

    def forget():
        monkeypatch.setattr(memo.Shared, "memo", memo.Memo(tmp_path / "kept"))
        timed.forget()

    monkeypatch.setattr(decisions, "QUICK", 0.0)
    forget()
    forget.path = tmp_path / "kept"
    return forget


def small(*sets):
    """A layer of GPT-2, 32 tokens."""
    return load_workload("gpt2", [("layers", "1"), ("sequence", "32"), *sets])


def searches(monkeypatch, module, name="map_workload"):
    """How often a mapping is looked for from here on."""
    asked, find = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **options: asked.append(args) or find(*args, **options))
    return asked


def test_another_process_looks_for_nothing(folder, monkeypatch):
    from siliconloom.evaluate import chip as module

    asked = searches(monkeypatch, module)
    machine = load_chip("npu-edge")
    first = simulate(machine, small())
    folder()
    again = simulate(machine, small())
    assert len(asked) == 1
    assert again.run.cycles == first.run.cycles
    assert again.plan.program == first.plan.program
    folder()
    exact = simulate(machine, small(), exact=True)
    assert exact.run.cycles == first.run.cycles


CHANGES = [("npu-edge", ("tile.vector.lanes", "8"), None), ("npu-edge", ("memory.dram.latency", "211 ns"), None)]
CHANGES += [("npu-edge", None, ("sequence", "33")), ("npu-edge", None, ("precision", "w4a16"))]


@pytest.mark.parametrize(("name", "chip", "work"), CHANGES)
def test_another_question_is_another_answer(folder, monkeypatch, name, chip, work):
    from siliconloom.evaluate import chip as module

    simulate(load_chip(name), small())
    folder()
    asked = searches(monkeypatch, module)
    machine, graph = load_chip(name, [chip] if chip else []), small(*([work] if work else []))
    found = simulate(machine, graph)
    assert len(asked) == 1
    assert found.plan.program == map_workload(machine, graph, Stopwatch(machine), search=False).program


def test_what_was_asked_is_part_of_the_question(folder, monkeypatch):
    asked = searches(monkeypatch, objectives, "_searched")
    machine, graph = load_chip("npu-edge-int8"), small()
    questions = [
        lambda: map_for("time", machine, graph),
        lambda: map_for("energy", machine, graph),
        lambda: map_for("traffic", machine, graph),
        lambda: map_for("time", machine, graph, search=Budget(trials=4)),
        lambda: map_for("time", machine, graph, search=Budget(trials=5)),
        lambda: map_for("time", machine, graph, search=Budget(trials=5, seed=1)),
    ]
    first = [plan_summary(ask()) for ask in questions]
    assert type(first[3]["local_search"]["first"]) is int
    folder()
    second = [plan_summary(ask()) for ask in questions]
    assert len(asked) == len(questions)
    assert not any(each.pop("remembered") for each in first)
    assert all(each.pop("remembered") for each in second)
    assert first == second
    assert repr(first) == repr(second)
    asked.clear()
    for _ in range(2):  # what is found in a time is no answer to be kept
        map_for("time", machine, graph, search=Budget(seconds=0.1))
    assert len(asked) == 2


@pytest.mark.parametrize("text", ["", "{}", "null", "[]", '{"layout": []}', None])
def test_a_decision_that_is_none_is_looked_for_again(folder, monkeypatch, text):
    machine, graph = load_chip("npu-edge-int8"), small()
    found = map_workload(machine, graph, Stopwatch(machine), search=False)
    if text is None:  # of another workload
        other = load_workload("bert-base", [("layers", "1"), ("sequence", "32")])
        text = decision_of(map_workload(machine, other, Stopwatch(machine), search=False))
    monkeypatch.setattr(decisions, "decision_of", lambda mapped, fitted: text)
    mapped_to(machine, graph, None)
    folder()
    assert mapped_to(machine, graph, None).program == found.program


def test_channels_and_several_levels_are_looked_for_each_time(folder):
    graph = small(("phase", "decode"))
    for name, sets in (("npu-pim-edge", []), ("npu-edge-int8", [("attention", "separate")])):
        machine = load_chip(name, sets)
        first = simulate(machine, graph).run.cycles
        folder()
        assert simulate(machine, graph).run.cycles == first


@pytest.mark.slow(seconds=4)
def test_a_command_says_that_it_remembers(tmp_path, monkeypatch, capsys, folder):
    results = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.json"
        assert main(["map", "npu-edge", "gpt2", "--set", "workload.layers=1", "--json", str(path)]) == 0
        results.append((json.loads(path.read_text()), capsys.readouterr().out))
        folder()
    (first, said), (second, again) = results
    assert not first.pop("remembered")
    assert second.pop("remembered")
    assert first == second
    assert "remembered" not in said
    assert "remembered" in again


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A package of three files that settled long ago, and the digest of it as a new process finds it."""
    package = tmp_path / "package"
    for name, text in (("__init__.py", ""), ("room/__init__.py", "a = 1"), ("room/text.v.j2", "module")):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(siliconloom, "__file__", str(package / "__init__.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(memo, "BEGAN", time.time_ns() + 10**18)
    read = memo.read_sources.__wrapped__
    return package, lambda: read()[0]


@pytest.mark.parametrize("name", ["__init__.py", "room/__init__.py", "room/text.v.j2"])
def test_code_that_changed_is_read_again(sources, name):
    package, digest = sources
    first = digest()
    assert digest() == first
    path = package / name
    old, text = path.stat(), path.read_text()
    path.write_text(text[::-1] or " ")
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))  # as old as before, and as long
    assert digest() != first
    path.write_text(text)
    assert digest() == first
    (package / "other.py").touch()
    assert digest() != first


def test_unchanged_code_is_not_read(sources, monkeypatch, tmp_path):
    package, digest = sources
    first = digest()
    with monkeypatch.context() as patch:
        patch.setattr(memo.hashlib, "sha256", _counted(seen := []))
        assert digest() == first
    assert len(seen) == 1
    (kept,) = (tmp_path / "cache/siliconloom/costs/code").iterdir()
    kept.write_text("no digest")
    assert digest() == first
    moved = package.with_name("moved")
    shutil.copytree(package, moved)
    monkeypatch.setattr(siliconloom, "__file__", str(moved / "__init__.py"))
    assert digest() == first


def _counted(seen):
    import hashlib

    make = hashlib.sha256
    return lambda *content: seen.append(content) or make(*content)


def test_code_that_changed_since_a_process_began_is_nobody_elses(sources, monkeypatch, tmp_path):
    """What it runs may be the old text or the new one; which version there is can be told all the same."""
    _, version = sources
    monkeypatch.setattr(memo, "read_sources", memo.read_sources.__wrapped__)
    digest = memo.code_digest.__wrapped__
    monkeypatch.setattr(memo, "BEGAN", time.time_ns())
    assert digest() != digest()
    told = version()
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(memo, "BEGAN", time.time_ns() + 10**18)
    assert digest() == digest() == version() == told


def test_what_old_code_finds_is_not_filed_once_there_is_new_code(sources, monkeypatch, tmp_path):
    package, _ = sources
    monkeypatch.setattr(memo, "BEGAN", time.time_ns() + 3 * 10**9)
    monkeypatch.setattr(memo._Looked, "at", -1.0)
    monkeypatch.setattr(memo._Looked, "settled", True)
    kept = memo.Memo(tmp_path / "kept")
    kept.keep("a" * 64, {"answer": 1})
    later = time.time() + 100
    monkeypatch.setattr(memo._Looked, "at", -1.0)
    monkeypatch.setattr(memo, "BEGAN", (package / "__init__.py").stat().st_ctime_ns)
    kept.keep("b" * 64, {"answer": 2})
    monkeypatch.setattr(memo, "BEGAN", int(later * 10**9))
    kept.keep("c" * 64, {"answer": 3})  # what changed once is no longer what began
    again = memo.Memo(tmp_path / "kept")
    assert [again.known(each * 64) for each in "abc"] == [{"answer": 1}, None, None]


def test_code_that_changed_before_the_memo_was_imported_is_not_settled():
    """What a process imports first may be older than what it imports last: it began with the package."""
    code = "import time, siliconloom; time.sleep(0.2); from siliconloom.arch.memo import BEGAN"
    code += "; print(time.time_ns() - BEGAN)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 0.2e9


def test_a_pipe_under_a_memos_name_is_no_answer(tmp_path):
    kept = memo.Memo(tmp_path)
    (tmp_path / "aa").mkdir()
    os.mkfifo(tmp_path / "aa" / f"{'a' * 64}.memo")
    assert kept.known("a" * 64) is None


@pytest.mark.parametrize("home", ["relative", ""])
def test_a_cache_is_no_folder_of_where_one_happens_to_be(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert memo.default_folder().is_absolute()


def test_a_format_that_is_stated_is_another_question(folder):
    """A chip may choose other elements where none is stated; both are of the same operators."""
    sets = [("tile.array.operands", "[bf16,fp16]")]
    chip = load_chip("npu-edge", sets)
    model = [("layers", "1"), ("sequence", "40")]
    plain = load_workload("llama2-7b", model)
    stated = load_workload("llama2-7b", [*model, ("precision", plain.precision.value)])
    expected = [map_workload(chip, each, Stopwatch(chip), search=False) for each in (plain, stated)]
    assert expected[0].program != expected[1].program
    for order in ((0, 1), (1, 0)):
        shutil.rmtree(folder.path, ignore_errors=True)
        folder()
        for at in order:
            assert mapped_to(chip, (plain, stated)[at], None).program == expected[at].program


def test_notes_name_the_workload_that_was_asked_for(folder):
    chip, graph = load_chip("npu-edge-int8"), small()
    first = mapped_to(chip, graph, None)
    folder()
    again = mapped_to(chip, replace(graph, name="zeta"), None)
    assert again.searched.remembered
    assert again.program == first.program
    assert [note.replace("zeta", "gpt2") for note in again.notes] == list(first.notes)
    assert any(note.startswith("zeta is stored as") for note in again.notes)


FUNCTIONS = [
    {"second": 1},
    {"masks": True},
    {"second": 0},
    {"second": 2},
    {"reduces": True, "passes": 2, "reductions": 1},
]


@pytest.mark.parametrize("shape", [(3000, 768), (3000, 100), (512, 100)])
def test_a_function_is_what_was_registered(folder, tmp_path, shape):
    """One name, registered as several functions one after the other, some of which cost the same."""
    rows, cols = shape
    chip = load_chip("npu-edge-int8")
    found = {}
    for times in range(2):
        for number, each in enumerate(FUNCTIONS):
            folder()
            common = {"name": "odd", "code": 50, "result": "?", "circuit": False}
            with registered(FunctionSpec(**common, **each)) as function:
                vector = Vector(
                    name="v", block="b", precision=DataType.INT8, function=function, rows=rows, cols=cols, inputs=2
                )
                flow = Dataflow()
                flow.add(vector)
                common = {"phase": Phase.PREFILL, "precision": DataType.INT8, "explicit_precision": True}
                graph = Graph(name="list", batch=1, tokens=1, dataflow=flow, **common)
                program = mapped_to(chip, graph, None).program
                if not times:
                    found[number] = map_workload(chip, graph, Stopwatch(chip), search=False).program
                assert program == found[number], each


def test_an_interrupted_search_is_not_what_is_remembered(folder, monkeypatch):
    from siliconloom.evaluate import chip as module

    find = module.map_workload
    interrupted = SearchEffort(interrupted=True)
    machine, graph = load_chip("npu-edge-int8"), small()
    with monkeypatch.context() as patch:
        patch.setattr(module, "map_workload", lambda *a, **k: replace(find(*a, **k), searched=interrupted))
        assert not mapped_to(machine, graph, None).searched.remembered
    folder()
    assert not mapped_to(machine, graph, None).searched.remembered
    folder()
    assert mapped_to(machine, graph, None).searched.remembered


@pytest.mark.slow(seconds=2)
def test_blocks_of_rows_are_remembered(folder):
    """Of an array that keeps its sums, products in blocks of fewer rows than it has (`block_sizes`)."""
    chip, graph = made_chip(TIGHT), small_llama(batch=4, sequence=100)
    found = mapped_to(chip, graph, None)
    assert any(task.block for part in found.mapping.parts for task in part.tasks)
    folder()
    again = mapped_to(chip, graph, None)
    same(again, found)

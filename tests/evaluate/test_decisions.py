"""Mappings that are remembered are those that a search finds, program by program, whoever found them first."""

import json
import os
import random
import shutil
import time

import pytest

import siliconloom
from siliconloom.arch import LoomError, load_chip, memo
from siliconloom.cli import main
from siliconloom.evaluate import decisions, objectives, timed
from siliconloom.evaluate.chip import mapped_to, simulate
from siliconloom.evaluate.mapping import plan_summary
from siliconloom.evaluate.objectives import map_for
from siliconloom.mapper.chip.budget import Budget
from siliconloom.mapper.chip.decided import decision_of, mapped_as
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import load_workload
from tests.in_turn import in_turn
from tests.mapper.chip.improvements import made_chip, random_chip, random_workload, workload

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
    folder()
    second = [plan_summary(ask()) for ask in questions]
    assert len(asked) == len(questions)
    assert not any(each.pop("remembered") for each in first)
    assert all(each.pop("remembered") for each in second)
    assert first == second
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
    monkeypatch.setattr(decisions, "decision_of", lambda mapped: text)
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
    monkeypatch.setattr(memo, "SETTLED", -1)
    return package, memo.code_digest.__wrapped__


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


def test_code_that_changed_just_now_proves_nothing(sources, monkeypatch, tmp_path):
    _, digest = sources
    monkeypatch.setattr(memo, "SETTLED", time.time())
    digest()
    assert not (tmp_path / "cache").exists()

"""The mutation benchmark: its sites are there, a bug acts only when it is chosen, and the table is of these bugs."""

import ast
import builtins
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from siliconloom.rtl.bench.runner import simulator_path

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.checkout


def planting():
    from benchmarks import planting

    return planting


def has_module(function):
    """Whether ``m``, which a planted choice is made in, is a parameter or a variable of a function."""
    return any(
        (isinstance(each, ast.arg) and each.arg == "m")
        or (isinstance(each, ast.Name) and each.id == "m" and isinstance(each.ctx, ast.Store))
        for each in ast.walk(function)
    )


def names_in(text):
    return {each.id for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name)}


def test_every_site_stands_once_in_its_file():
    module = planting()
    files = {}
    for number, mutant in module.all_mutants().items():
        files.setdefault(mutant.file, []).append((number, mutant))
    for file, mutants in files.items():
        source = (ROOT / file).read_text(encoding="utf-8")
        tree = ast.parse(module.patched(source, mutants))
        known = names_in(source) | {each.name for each in ast.walk(tree) if isinstance(each, ast.alias)}
        known |= {each.arg for each in ast.walk(tree) if isinstance(each, ast.arg)} | set(dir(builtins))
        for _, mutant in mutants:
            wrong = mutant.pieces[2]
            own = {e.id for e in ast.walk(ast.parse(f"({wrong})")) if isinstance(getattr(e, "ctx", None), ast.Store)}
            assert names_in(f"({wrong})") <= known | own, f"{file}: {mutant.what}: {wrong}"
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and "_planted(" in ast.unparse(function):
                assert has_module(function), f"{file}: {function.name} plants a bug and has no module"
    assert len(module.all_mutants()) >= 60


def test_a_site_that_is_gone_is_named():
    module = planting()
    gone = module.Mutant("npu", "rtl/npu/dma.py", "x = <|a|=|b|>", "a bug")
    with pytest.raises(ValueError, match=r"rtl/npu/dma.py: a bug: its site is there 0 times"):
        module.patched("y = a", [(1, gone)])
    assert module.patched("x = a", [(1, gone)]) == "x = _planted(m, (a), {1: (b)})"


def test_the_table_is_of_these_bugs_and_every_survivor_is_explained():
    record = json.loads((ROOT / "benchmarks" / "results" / "mutation.json").read_text())
    mutants = planting().all_mutants()
    assert [(row["number"], row["file"], row["bug"]) for row in record["rows"]] == [
        (number, mutant.file, mutant.what) for number, mutant in mutants.items()
    ]
    assert record["planted"] == len(mutants)
    assert record["killed"] == sum(row["killed_by"] is not None for row in record["rows"])
    text = (ROOT / "docs" / "mutation.md").read_text(encoding="utf-8")
    for row in record["rows"]:
        if row["killed_by"] is None:
            assert f"| {row['bug']} |" in text, row["bug"]
    assert f"{record['killed']} of {record['planted']}" in text


@pytest.mark.slow(seconds=32)
@pytest.mark.rtl
def test_planted_bugs_are_killed_and_the_circuit_without_one_is_not():
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    wanted = ("an element takes what passes by", "a full shadow is loaded over", "a result that waits is lost")
    chosen = [str(number) for number, mutant in planting().all_mutants().items() if mutant.what in wanted]
    command = ["-m", "benchmarks.mutation", "--quick", "--simulator", "icarus", "--only", ",".join(chosen)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 killed" in done.stdout

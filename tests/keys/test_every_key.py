"""Every key of every description changes some result, or is refused: none is accepted and read by nobody."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from siliconloom.arch.document import Description
from siliconloom.mapper.system.plan import KEYS
from tests.keys.bases import BASES, FILES, Refused, kept
from tests.keys.table import COMMENTS, ELSEWHERE, ROWS
from tests.workloads.onnx_files import OnnxWriter

MODULES = (
    "arch.description",
    "arch.tile",
    "arch.array",
    "arch.memory",
    "arch.system",
    "arch.network",
    "arch.link",
    "arch.ring",
    "arch.pim",
    "arch.dram",
    "arch.gpu",
    "arch.communication",
    "arch.run",
    "arch.mapping",
    "arch.fleet",
    "arch.serving",
    "arch.sweep",
    "workloads.lists",
    "workloads.description",
    "workloads.onnx.description",
    "workloads.requests",
)
"""Where the descriptions that users write are; those of `baselines` are this package's own data."""
SHARED = {"DramCells"}
"""Keys that several descriptions share; each of those is tried."""
LONG = {"neupims", "neupims many", "unequal"}
"""Whose answers take seconds."""
TRIALS = [
    pytest.param(
        name, base, prefix, trial, id=f"{name}.{trial} ({base})", marks=[pytest.mark.slow(seconds=10)] * (base in LONG)
    )
    for name, base, prefix, trials in ROWS
    for trial in trials.split()
]
results: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}


@pytest.fixture(scope="module", autouse=True)
def _inputs(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("keys"), Path.cwd()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for name, width in (("small.onnx", 16), ("other.onnx", 24)):
        file = OnnxWriter()
        x = file.input("x", ["batch", "sequence", "heads", width])
        file.save(folder / name, file.node("MatMul", x, file.weight("w", width, 32)))
    os.chdir(folder)
    yield
    os.chdir(before)
    results.clear()


def result(base: str, sets: tuple[tuple[str, str], ...]) -> Any:
    if (base, sets) not in results:
        results[base, sets] = kept(BASES[base](list(sets)))
    return results[base, sets]


def parts(prefix: str, trial: str) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...], str, bool]:
    """Overrides before and after, the last key, and whether it must be refused."""
    sets, refused = [], False
    for number, each in enumerate(trial.replace("&&", "&").split("&")):
        match = re.match(r"([\w.]+)([=!])(.*)", each)
        assert match is not None, trial
        key, sign, value = match.groups()
        refused = sign == "!"
        spaced = re.sub(r"([:,])(?=[^\s/])", r"\1 ", value) if value[:1] in "{[" else value
        sets.append((key if number else prefix + key, spaced))
    return () if "&&" in trial else tuple(sets[:-1]), tuple(sets), sets[-1][0], refused


@pytest.mark.slow(seconds=0.4)
@pytest.mark.parametrize(("name", "base", "prefix", "trial"), TRIALS)
def test_another_value_changes_a_result_or_is_refused(name, base, prefix, trial):
    before, after, key, refused = parts(prefix, trial)
    if not refused:
        assert result(base, after) != result(base, before), f"{key} changes nothing"
        return
    with pytest.raises(Refused) as caught:
        result(base, after)
    assert str(caught.value).startswith("2: ")
    assert any(word in str(caught.value) for word in (key.rpartition(".")[2], key.split(".")[0]))


def keys_of(kind: type[Description]) -> list[str]:
    """Keys that hold values: not descriptions within, whose own keys count, nor a kind that has one name only."""
    found = []
    for name, field in kind.model_fields.items():
        inner = _descriptions(field.annotation)
        single = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
        if not inner and not single and name not in COMMENTS:
            found.append(field.alias or name)
    return found


def _descriptions(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, Description)
    return any(_descriptions(each) for each in get_args(annotation))


def described() -> dict[str, list[str]]:
    """Every description that users write, with its keys."""
    found = {"Plan": list(KEYS)}
    for module in MODULES:
        loaded = importlib.import_module(f"siliconloom.{module}")
        for value in vars(loaded).values():
            written = isinstance(value, type) and issubclass(value, Description) and value.__name__ not in SHARED
            if written and value.__module__ == loaded.__name__:
                found[value.__name__] = keys_of(value)
    return found


def test_no_key_is_left_out():
    """A new key needs a row in the table, so that none is accepted and changes nothing."""
    tried: set[str] = set(ELSEWHERE)
    for name, _, _, trials in ROWS:
        for trial in trials.split():
            for number, each in enumerate(trial.replace("&&", "&").split("&")):
                key = re.split("[=!]", each)[0]
                tried.add(f"{name}.{key.split('.')[-1] if number else key.split('.')[0]}")
    missing = [f"{name}.{key}" for name, keys in described().items() for key in keys if f"{name}.{key}" not in tried]
    assert not missing, f"keys that no row of tests/keys/table.py tries: {', '.join(missing)}"

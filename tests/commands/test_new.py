"""``loom new chip``: every key explained, and a description that loads and says what its base says."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.description import Chip, new_chip
from siliconloom.arch.document import Document
from siliconloom.arch.names import chip_names
from siliconloom.arch.schema_keys import is_mapping, key_paths, models_of
from siliconloom.cli import main


def read(text):
    document = Document.parse(text)
    document.expect_kind(["chip"])
    return document.validate(Chip)


@pytest.mark.parametrize("name", chip_names())
def test_it_says_what_its_base_says(name):
    assert read(new_chip(name, name)) == load_chip(name)


@pytest.mark.parametrize("name", chip_names())
def test_it_names_every_key_with_a_meaning(name):
    text = new_chip("mine", name)
    data = Document.parse(text).data
    for path in key_paths(Chip, data):
        assert re.search(rf"^ *(# )?{path.rpartition('.')[2]}:", text, re.M), path
    lines = text.splitlines()
    for number, line in enumerate(lines[4:], 4):
        if re.match(r" *(# )?[A-Za-z_]+: ", line):
            assert lines[number - 1].lstrip().startswith("##"), line


def described(model, seen):
    if model not in seen:
        seen.add(model)
        for name, field in model.model_fields.items():
            yield model.__name__, name, field
            for inner in models_of(field.annotation):
                yield from described(inner, seen)


def test_every_key_of_a_chip_has_a_description():
    assert [f"{m}.{name}" for m, name, field in described(Chip, set()) if not field.description] == []
    assert is_mapping(Chip.model_fields["memory"].annotation)


TEXT = new_chip("mine", "npu-edge")
UNSET = [n for n, line in enumerate(TEXT.splitlines()) if n > 3 and re.match(r" *# [a-z_]+: (?!null)\S", line)]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(UNSET))
def test_a_default_that_is_taken_out_of_its_comment_changes_nothing(number):
    """Or is refused in one line, as a key of a part that is not there."""
    lines = TEXT.splitlines()
    lines[number] = lines[number].replace("# ", "", 1)
    try:
        again = read("\n".join(lines))
    except LoomError:
        indent = len(lines[number]) - len(lines[number].lstrip())
        assert indent > 0
        return
    assert again == read(TEXT)


@pytest.mark.slow(seconds=1)
def test_the_command_writes_it_and_it_simulates(tmp_path, capsys):
    path = str(tmp_path / "mine.yaml")
    assert main(["new", "chip", "mine", "-o", path]) == 0
    assert "loom sim" in capsys.readouterr().out
    assert main(["sim", path, "gpt2", "--set", "workload.layers=1", "--set", "workload.sequence=8"]) == 0
    assert "mine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["chp", "x"], "did you mean 'chip'?"),
        (["system", "x"], "KIND must be chip"),
        (["chip", "1x"], "name"),
        (["chip", "x", "--from", "npu-egde"], "did you mean 'npu-edge'?"),
        (["chip", "x", "--from", "h100"], "no such file"),
    ],
)
def test_mistakes_are_one_line(words, told, capsys):
    assert main(["new", *words]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_an_edited_description_is_not_lost(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("edited\n")
    assert main(["new", "chip", "mine", "-o", str(path)]) == 2
    assert path.read_text() == "edited\n"
    assert "--force" in capsys.readouterr().err
    assert main(["new", "chip", "mine", "-o", str(path), "--force"]) == 0
    assert "kind: chip" in path.read_text()


@pytest.mark.parametrize(
    ("base", "told", "not_told"),
    [
        ("h100", "known: csd-flash", "dgx-h100"),
        ("dgx-h100", "known: csd-flash", "dgx-h100-"),
        ("npu-ege", "did you mean 'npu-edge'?", "known"),
        ("none.yaml", "none.yaml: no such file", "known"),
    ],
)
def test_only_chips_are_suggested_to_begin_with(base, told, not_told, capsys):
    assert main(["new", "chip", "x", "--from", base]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert not_told not in error

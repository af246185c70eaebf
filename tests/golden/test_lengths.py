"""The lengths of programs that docs/mapping.md shows are those that the mapper makes."""

import pytest

from tests.golden import lengths

TEXT = lengths.DOCUMENT.read_text(encoding="utf-8") if lengths.DOCUMENT.exists() else ""
pytestmark = pytest.mark.checkout


def columns(row):
    return [column.strip() for column in row.strip("|").split("|")]


@pytest.mark.parametrize("model", lengths.MODELS[:2])
def test_a_small_models_programs_are_as_long_as_the_table_says(model):
    chip, kind = lengths.ROWS[0]
    number = 1 + lengths.MODELS.index(model)
    assert columns(lengths.shown(chip, kind, TEXT))[number] == lengths.cell(chip, kind, model), (
        "python -m tests.golden.lengths"
    )


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize(("chip", "kind"), lengths.ROWS)
def test_programs_are_as_long_as_the_table_says(chip, kind):
    assert lengths.shown(chip, kind, TEXT) == lengths.row(chip, kind), "python -m tests.golden.lengths"


def test_the_table_has_a_column_of_each_model():
    header = next(line for line in TEXT.splitlines() if set(lengths.MODELS) <= set(columns(line)))
    assert tuple(columns(header)[1:]) == lengths.MODELS

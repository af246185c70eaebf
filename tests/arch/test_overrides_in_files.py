"""Changes that a system's file makes to its chips: what is wrong with one has its line there, and its key path."""

from pathlib import Path

import pytest

from siliconloom.arch import LoomError, load_system
from siliconloom.arch.chip_ring import load_ring, ring_parts
from siliconloom.arch.names import LIBRARY
from siliconloom.arch.system import load_group

ROWS = 'tile.array.rows: "8"'


@pytest.fixture
def ring(tmp_path):
    """The library's ring with another change in place of its chips' rows."""

    def written(change):
        path, text = tmp_path / "ring.yaml", (Path(LIBRARY) / "npu-x4-ring.yaml").read_text()
        assert text.count(ROWS) == 1
        path.write_text(text.replace(ROWS, change))
        return str(path)

    return written


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ('tile.array.rows: "banana"', "9:24: chips.0.overrides.tile.array.rows: must be a valid integer"),
        ('tile.aray.rows: "8"', "9:23: chips.0.overrides.tile.aray: unknown key 'aray'"),
        ('tile..rows: "8"', "9:19: chips.0.overrides.tile..rows: a key path has names separated by single dots"),
        ('tile.array.rows: "[8"', "9:24: chips.0.overrides.tile.array.rows: the value is not valid YAML"),
        ('tile.array.rows: "7"', "11:29: chips.0.overrides.tile.array.load_rows: must divide rows: 2 does not"),
    ],
)
def test_a_change_in_a_file_has_its_line(ring, change, line):
    path = ring(change)
    for load in (lambda: load_group(load_system(path).chips[0]), lambda: ring_parts(load_ring(path, []))):
        with pytest.raises(LoomError) as found:
            load()
        assert str(found.value).startswith(f"{path}:{line}")


def test_changes_of_the_command_line_are_still_its_own(ring):
    path = ring('tile.array.rows: "banana"')
    said = [("chip.tile.array.rows", "apple")], [("tile.array.rows", "apple")]
    loads = (lambda: ring_parts(load_ring(path, said[0])), lambda: load_group(load_system(path).chips[0], said[1]))
    for load in loads:
        with pytest.raises(LoomError, match=r"^--set tile\.array\.rows=apple: tile\.array\.rows: must be a valid int"):
            load()
    (group,) = load_ring(path, [("chip.tile.array.rows", "4")]).chips
    assert load_group(group).tile.array.rows == 4


def test_where_a_change_stands_makes_no_other_description(ring):
    system = load_system(ring(ROWS))
    assert system == load_system("npu-x4-ring")
    assert load_group(system.chips[0]) == load_group(load_system("npu-x4-ring").chips[0])

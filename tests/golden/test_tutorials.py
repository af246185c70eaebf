"""Tutorials show what their commands print."""

import pytest

from tests.golden import readme, tutorials

pytestmark = pytest.mark.checkout


def test_each_of_the_three_users_has_one():
    assert [path.stem for path in tutorials.TUTORIALS] == ["architect", "researcher", "rtl-engineer"]
    for path in tutorials.TUTORIALS:
        assert len(readme.blocks(path.read_text(encoding="utf-8"))) >= 4


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.rtl])])
@pytest.mark.parametrize("path", tutorials.TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_shows_what_is_printed(path, slow, tmp_path):
    for command, shown, printed in tutorials.checked(path.read_text(encoding="utf-8"), tmp_path, slow):
        assert shown == printed, f"python -m tests.golden.tutorials: loom {command}"


def test_a_line_that_is_stale_is_found_and_files_are_there(tmp_path, monkeypatch):
    text = "```yaml\n# a.yaml\nkind: chip\n```\n\n```\n$ loom sim a.yaml\n  time   1 s\n```\n"

    def output(command, shown=""):
        assert (tmp_path / "a.yaml").read_text() == "# a.yaml\nkind: chip\n"
        return ["  time   2 s"]

    monkeypatch.setattr(readme, "output", output)
    found = list(tutorials.checked(text, tmp_path, False))
    assert found == [("sim a.yaml", "  time   1 s\n", "  time   2 s\n")]
    assert list(tutorials.checked(text, tmp_path, True)) == []

"""What Verilator counts is read as it stands, and the record that is kept adds up."""

import json
from pathlib import Path

import pytest

# benchmarks are part of a checkout, not of the installed package
coverage = pytest.importorskip("benchmarks.coverage")
KINDS, RESULT, Point = coverage.KINDS, coverage.RESULT, coverage.Point
points, share, tally = coverage.points, coverage.share, coverage.tally

TEXT = "\n".join(
    [
        "# SystemC::Coverage-3",
        "C '\x01f\x02/a/top.v\x01l\x0212\x01n\x025\x01page\x02v_line/top\x01o\x02block\x01h\x02TOP.top' 7",
        "C '\x01f\x02/a/top.v\x01l\x0213\x01n\x025\x01page\x02v_branch/top\x01o\x02if\x01h\x02TOP.top' 0",
        "C '\x01f\x02/a/part.v\x01l\x024\x01n\x025\x01page\x02v_toggle/part\x01o\x02busy[3]:0->1\x01h\x02TOP.top.x' 2",
        "C '\x01f\x02/a/part.v\x01l\x024\x01page\x02v_user/part\x01o\x02cover\x01h\x02TOP.top.x' 2",
    ]
)


def test_points_are_read_with_their_kind_file_and_count():
    assert list(points(TEXT)) == [
        Point("lines", "top.v", 12, "block", 7),
        Point("branches", "top.v", 13, "if", 0),
        Point("toggles", "part.v", 4, "busy[3]:0->1", 2),
    ]


def test_points_are_counted_by_kind():
    counted = tally(list(points(TEXT)))
    assert counted == {
        "lines": {"points": 1, "reached": 1},
        "branches": {"points": 1, "reached": 0},
        "toggles": {"points": 1, "reached": 1},
    }
    assert [share(each) for each in counted.values()] == [100, 0, 100]
    assert share({"points": 0, "reached": 0}) == 100


@pytest.mark.checkout
def test_the_record_adds_up_and_the_document_shows_it():
    record = json.loads(RESULT.read_text(encoding="utf-8"))
    text = (Path(__file__).parents[2] / "docs" / "mutation.md").read_text(encoding="utf-8")
    for kind in KINDS.values():
        for what in ("points", "reached"):
            whole = record["all"][kind][what]
            assert whole == sum(module[kind][what] for module in record["modules"].values())
            assert f"{whole:,}" in text, f"docs/mutation.md must show {whole:,} {kind} ({what})"
        assert f"{share(record['all'][kind]):.1f} %" in text
    assert f"{record['ran']['cycles']:,} cycles" in text
    assert f"{record['ran']['random']} random programs" in text

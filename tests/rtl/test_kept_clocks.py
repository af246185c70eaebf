"""Clocks that are kept of whole tiles: of the tiles that the benchmark has, as described, and as the documents say."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.checkout


def test_kept_tiles_close_the_clocks_that_they_are_described_with_and_documents_say_so():
    from benchmarks.synthesis import TIMED

    kept = json.loads((ROOT / "benchmarks" / "results" / "timed.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "flows.md").read_text(encoding="utf-8")
    assert {name: row["sets"] for name, row in kept.items()} == {name: sets for name, (_, sets) in TIMED.items()}
    for row in kept.values():
        assert row["mhz"] >= row["asked_mhz"] == float(row["sets"]["clock"].removesuffix("MHz"))
        assert f"| {row['area']:,.0f} | {row['mhz']:.1f} |" in text
        for key in (
            "tile.vector.latency",
            "tile.vector.sum_stages",
            "tile.array.accumulate_stages",
            "tile.array.unpack_stages",
        ):
            if key in row["sets"]:
                assert f"`{key}={row['sets'][key]}`" in text

"""`sl.sweep`: the same points as the command's, as a result in Python."""

import json

import pytest
import yaml

import siliconloom as sl
from siliconloom.cli import main

SWEEP = {
    "kind": "sweep",
    "machine": "npu-edge-int8",
    "workload": "gpt2-block-gemms",
    "keys": {"tile.dma.bytes_per_cycle": [32, 64], "tile.scratchpad.capacity": ["64 KiB", "256 KiB"]},
    "objectives": ["time", "area"],
    "constraints": [{"metric": "area", "at_most": "0.4 mm2"}],
}


@pytest.mark.slow(seconds=1.5)
def test_a_sweep_in_python_has_the_points_of_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    assert main(["sweep", "sweep.yaml", "--workers", "1", "--json", "points.json"]) == 0
    capsys.readouterr()
    theirs = json.loads((tmp_path / "points.json").read_text())
    for found in (sl.sweep(SWEEP), sl.sweep("sweep.yaml", "kept.sqlite")):
        assert isinstance(found, sl.Result)
        assert [p["metrics"] for p in found["points"]] == [p["metrics"] for p in theirs["points"]]
        assert found["front"] == theirs["front"]
        frame = found.frame("points")
        assert list(frame["metrics.area"]) == [p["metrics"]["area"] for p in theirs["points"]]
        assert "time" in str(found)
    areas = {p["metrics"]["area"]: p["feasible"] for p in theirs["points"]}
    assert all(kept is (area <= 0.4) for area, kept in areas.items())
    assert len(set(areas.values())) == 2
    assert (tmp_path / "kept.sqlite").exists()


def test_what_is_no_sweep_is_refused_by_name():
    with pytest.raises(sl.LoomError, match="sweep: keys"):
        sl.sweep({**SWEEP, "keys": {"tile.arrray.rows": [8, 16]}})
    with pytest.raises(sl.LoomError, match="objectives"):
        sl.sweep({**SWEEP, "objectives": ["tame"]})

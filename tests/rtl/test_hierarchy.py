"""Synthesis module by module finds what one run of Yosys finds, and finds it again without Yosys."""

import json

import pytest

from siliconloom.arch import load_chip
from siliconloom.arch.memo import Memo, Shared
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.synthesis import hierarchy
from siliconloom.rtl.synthesis.yosys import quoted, run_yosys
from tests.tools import need_yosys


@pytest.mark.slow(seconds=7)
def test_modules_by_themselves_are_those_of_one_run(tmp_path, monkeypatch):
    need_yosys()
    bundle = build_rtl(load_chip("systolic-ws-8", [("tile.array.rows", "2"), ("tile.array.cols", "2")]))
    names = bundle.sidecar["verilog"]
    for name in names:
        (tmp_path / name).write_text(bundle.files[name], encoding="utf-8")
    read = [f"read_verilog {quoted(name)}" for name in names]
    run_yosys(
        [*read, f"synth_ecp5 -noflatten -top {bundle.top}", "delete t:$scopeinfo", "tee -o a.json stat -json"], tmp_path
    )
    whole = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    wanted = {
        name.removeprefix("\\"): {kind.removeprefix("\\"): count for kind, count in each["num_cells_by_type"].items()}
        for name, each in whole["modules"].items()
    }
    monkeypatch.setattr(Shared, "compiled", Memo(tmp_path / "memo"))
    told = []
    found = hierarchy.module_counts(bundle, tmp_path, lambda known, modules: told.append((known, modules)))
    assert found == wanted
    assert told[0] == (0, len(wanted))
    assert max(told) == (len(wanted), len(wanted))
    statistics = hierarchy.statistics_of(found, bundle.top)
    design = whole["design"]["num_cells_by_type"]
    leaves = {kind.removeprefix("\\"): count for kind, count in design.items() if kind.removeprefix("\\") not in wanted}
    assert statistics["design"]["num_cells_by_type"] == leaves

    monkeypatch.setattr(Shared, "compiled", Memo(tmp_path / "memo"))
    monkeypatch.setattr(hierarchy, "run_yosys", lambda *_: pytest.fail("what is known is synthesized again"))
    assert hierarchy.module_counts(bundle, tmp_path, lambda known, modules: None) == wanted

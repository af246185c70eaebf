"""What the spans of a trace on a chip are: the time of a unit's instructions, and the part of it that is work."""

import pytest

from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.evaluate.timeline import timeline_of
from siliconloom.workloads import load_workload

SHALLOW = "kind: gemms\nname: shallow\nprecision: int8\ngemms: [{name: a, m: 128, n: 128, k: 8}]\n"


@pytest.mark.parametrize(
    ("chip", "model", "waits"),
    [
        ("npu-edge-int8", "gpt2", ("stationary_load",)),
        ("gemmini-16", "gpt2", ()),
        ("systolic-os-32", SHALLOW, ("drain",)),
    ],
)
def test_busy_cycles_of_spans_are_those_of_the_unit(chip, model, waits, tmp_path):
    (tmp_path / "shallow.yaml").write_text(SHALLOW)
    own = model == SHALLOW
    graph = load_workload(
        str(tmp_path / "shallow.yaml") if own else model, [] if own else [("layers", "1"), ("sequence", "16")]
    )
    machine = read_machine(chip, [])
    window = 0, evaluate(machine, graph, []).result["cycles"]
    done = evaluate(machine, graph, [], trace_limit=200_000, window=window)
    timeline = timeline_of(done.simulation, window)
    assert not timeline.facts["left_out"]
    assert not timeline.facts["jumps"]
    spans, busy = dict.fromkeys(timeline.tracks.values(), 0), dict.fromkeys(timeline.tracks.values(), 0)
    for span in timeline.spans:
        name = timeline.tracks[span.track]
        spans[name] += span.end - span.start
        busy[name] += span.details["busy_cycles"]
    units = done.result["units"]
    for name in units.keys() - {"sequencer"}:
        assert busy[name] == units[name]["busy_cycles"]
        if name != "array":
            assert spans[name] == busy[name]
    within = spans["array"] - busy["array"]
    assert 0 <= within <= sum(units["array"]["stall_cycles"].get(each, 0) for each in ("stationary_load", "drain"))
    assert within or not waits
    assert within <= sum(units["array"]["stall_cycles"][each] for each in waits) or not waits

"""The timeline of a step: it ends when the step does, and what it shows is what the step consists of."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.cli import main
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.render.page_tracks import MOST_SPANS, tracks_of
from siliconloom.workloads import load_workload

MACHINES = ("h100", "dgx-h100", "npu-datacenter-x8")


def step(name, workload="llama3-8b", phase="prefill", plan=None, **more):
    """Result and timeline of a step."""
    values = {"phase": phase, "layers": 4, "sequence": 64} | more
    graph = load_workload(workload, [(k, str(v)) for k, v in values.items()])
    machine = read_machine(name, [(f"plan.{k}", str(v)) for k, v in (plan or {}).items()])
    drawn = []
    result = evaluate(machine, graph, timeline=drawn).result
    (timeline,) = drawn
    return result, timeline


def on(timeline, beginning):
    """Spans by track of this beginning, in their order."""
    found = {track: [] for track, name in timeline.tracks.items() if name.startswith(beginning)}
    for span in timeline.spans:
        if span.track in found:
            found[span.track].append(span)
    return found


def holds(result, timeline):
    """That a timeline is its result's."""
    end = max(span.end for span in timeline.spans) * timeline.tick
    assert timeline.facts["step_s"] == pytest.approx(result["seconds"], rel=1e-12)
    if "steady" not in timeline.facts:
        assert end == pytest.approx(result["seconds"], rel=1e-9)
    work = on(timeline, "operators")
    for spans in (*on(timeline, "stage").values(), *work.values()):
        assert all(a.end <= b.start for a, b in pairwise(spans)), "one after the other"
    if "operators" in timeline.facts:
        assert work == {}
        return
    for passes, spans in zip(on(timeline, "stage").values(), work.values(), strict=True):
        whole = {each.name: (each.start, each.end) for each in passes}
        assert {span.details["pass"] for span in spans} == set(whole)
        for name, (start, until) in whole.items():
            within = [span for span in spans if span.details["pass"] == name]
            assert (within[0].start, within[-1].end) == (start, until)
    seconds = Counter()
    for spans in work.values():
        for span in spans:
            seconds[span.name] += (span.end - span.start) * timeline.tick
    rows = Counter()  # parts of an operator count for it
    for row in result["operators"]:
        owner = next(
            (name for name in seconds if row["name"].startswith(f"{name}.") and row["name"] not in seconds), ""
        )
        rows[owner or row["name"]] += row["seconds"] - row.get("overlap_cycles", 0) / result["clock_hz"]
    for name, total in seconds.items():
        if name in rows:
            assert total == pytest.approx(rows[name], rel=1e-6, abs=1e-9), name
    assert sum(seconds.values()) == pytest.approx(sum(rows[n] for n in seconds if n in rows), rel=0.05)


STEPS = [(name, phase) for name in MACHINES for phase in ("prefill", "decode", "training")]


@pytest.mark.parametrize(("name", "phase"), [each for each in STEPS if each != ("npu-datacenter-x8", "training")])
def test_a_timeline_is_its_step(name, phase):
    """Of all that there is: our own chips do not train."""
    holds(*step(name, phase=phase))


@settings(max_examples=12)
@given(
    st.sampled_from(["prefill", "decode", "training"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["1f1b", "gpipe", "zero_bubble", "v_half"]),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from(["none", "tokens"]),
    st.integers(0, 2),
)
def test_timelines_of_plans_are_their_steps(phase, tensor, pipeline, microbatch, schedule, recompute, overlap, zero):
    plan = {"tensor": tensor, "pipeline": pipeline, "microbatch": microbatch, "data": 2}
    if phase == "training":
        plan |= {"schedule": schedule, "recompute": recompute, "zero": zero}
    if overlap != "none" and tensor > 1 and phase == "prefill":
        plan["overlap"] = overlap
    try:
        found = step("dgx-h100", phase=phase, plan=plan, batch=16)
    except LoomError:
        reject()  # plans that do not divide; too many of them fail
    holds(*found)


def test_work_that_no_plan_cuts_is_operators_one_after_the_other():
    graph = load_workload("gpt2-block-gemms", [])
    drawn = []
    result = evaluate(read_machine("h100", []), graph, timeline=drawn).result
    (timeline,) = drawn
    assert max(span.end for span in timeline.spans) * timeline.tick == pytest.approx(result["seconds"])
    seconds = Counter()
    for span in timeline.spans:
        seconds[span.name] += (span.end - span.start) * timeline.tick
    assert dict(seconds) == pytest.approx({row["name"]: row["seconds"] for row in result["operators"]}, rel=1e-6)


def test_plans_that_are_more_than_operators_have_passes_and_say_why():
    _, timeline = step("dgx-h100", plan={"tensor": 4, "overlap": "tokens"})
    assert on(timeline, "operators") == {}
    assert "plan.overlap tokens" in timeline.facts["operators"]


def test_steps_of_tokens_in_a_pipeline_say_what_is_shown():
    result, timeline = step("dgx-h100", phase="decode", plan={"tensor": 2, "pipeline": 4}, batch=8)
    assert "steady" in timeline.facts
    assert result["seconds"] == timeline.facts["step_s"]


def test_a_page_without_room_shows_the_passes():
    _, timeline = step("dgx-h100", phase="training", plan={"tensor": 4, "pipeline": 2}, batch=8)
    shown, cut = tracks_of(timeline)
    assert (len(shown["tracks"]), cut) == (len(timeline.tracks), 0)
    times = MOST_SPANS // len(timeline.spans) + 1
    many = type(timeline)(
        timeline.title, timeline.tick, timeline.tracks, list(timeline.spans) * times, finer=timeline.finer
    )
    fewer, cut = tracks_of(many)
    assert all(not name.startswith("operators") for name in fewer["tracks"])
    assert sum(map(len, fewer["spans"])) // 4 + cut == len(many.spans)


@pytest.mark.parametrize(("ending", "status"), [(".json", 0), (".kanata", 2)])
def test_the_command_writes_it(tmp_path, capsys, ending, status):
    file, page = tmp_path / f"run{ending}", tmp_path / "page.html"
    sets = ["--set", "workload.layers=1", "--set", "workload.sequence=32"]
    assert main(["sim", "h100", "gpt2", *sets, "--trace", str(file), "--report", str(page)]) == status
    if status:
        assert "Konata shows the instructions of one chip, and this run has none" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
        return
    trace = json.loads(file.read_text())
    assert {e["cat"] for e in trace["traceEvents"] if e["ph"] == "X"} == {"forward", "gemm", "attention", "vector"}
    assert '<figure id="pipeline">' in page.read_text()

"""Traces of collectives and communication programs: every message is there, no two at once on a track."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.network import load_network
from siliconloom.cli import main
from siliconloom.evaluate import messages
from siliconloom.evaluate.collective import collective_result
from siliconloom.evaluate.communication import communication_result
from siliconloom.mapper.network.collectives import OPERATIONS

PROGRAM = """kind: communication
name: two
program:
  - do:
      - compute: {time: 3 us}
      - all_reduce: {bytes: 64 KiB}
  - stream: side
    do: [together: [send: {to: rank+1, bytes: 64 KiB}, receive: {from: rank-1}]]
"""


def by_track(timeline):
    found = {}
    for span in timeline.spans:
        assert span.track in timeline.tracks
        found.setdefault(span.track, []).append(span)
    return found


def drawn(network, operation, size, chips, **options):
    timelines = []
    result = collective_result(load_network(network), operation, size, chips, timeline=timelines, **options)
    (timeline,) = timelines
    return result, timeline


@pytest.mark.slow(seconds=1)
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["ring", "switch", "torus-2d", "fully-connected"]),
    st.sampled_from(sorted(OPERATIONS)),
    st.integers(1, 10**7),
    st.sampled_from([4, 8, 16]),
    st.booleans(),
)
def test_messages_are_those_that_were_run(network, operation, size, chips, flows):
    result, timeline = drawn(network, operation, float(size), chips, flows=flows)
    sent = [span for span in timeline.spans if span.category == "message"]
    assert len(sent) == result["messages"]
    last = max(span.end for span in timeline.spans)
    assert last * timeline.tick == pytest.approx(result["time_s"], rel=1e-8)
    for track, spans in by_track(timeline).items():
        assert all(later.start >= sooner.end for sooner, later in pairwise(spans)), timeline.tracks[track]
    least = min(load_network(network).link.latency, 1)
    assert all(span.end >= span.start + least for span in sent)
    assert sorted(span.details["message"] for span in timeline.spans) == list(range(len(timeline.spans)))


def test_a_message_leaves_when_what_it_waits_for_is_there():
    class Table:
        first, waits = np.array([0, 0, 1, 3]), np.array([0, 0, 1])

        def __len__(self):
            return 3

    class Ran:
        done = np.array([5, 9, 12])

    assert messages.released(Table(), Ran()).tolist() == [0, 5, 9]


def test_a_ring_sends_its_parts_one_after_the_other():
    result, timeline = drawn("ring", "all_gather", 1e6, 4)
    assert result["algorithm"] in ("ring", "bidirectional_ring", "direct")
    steps = {}
    for span in timeline.spans:
        steps.setdefault(span.details["step"], []).append(span)
    assert min(span.start for span in steps[min(steps)]) == 0
    assert sum(span.details["bytes"] for span in timeline.spans) == pytest.approx(3e6, rel=1e-6)


def test_a_program_has_a_track_for_each_stream_of_each_rank(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(PROGRAM)
    timelines = []
    result = communication_result(load_network("ring"), str(file), 4, timeline=timelines)
    (timeline,) = timelines
    names = {timeline.tracks[track]: [span.name for span in spans] for track, spans in by_track(timeline).items()}
    for rank in range(4):
        assert names[f"rank {rank}, main"] == ["compute", "all_reduce"]
        assert sorted(names[f"rank {rank}, side"] + names[f"rank {rank}, side (2)"]) == ["receive", "send"]
    assert len(names) == 12
    for spans in by_track(timeline).values():
        assert all(later.start >= sooner.end for sooner, later in pairwise(spans))
    assert {span.end - span.start for span in timeline.spans if span.name == "compute"} == {3_000_000}
    assert max(span.end for span in timeline.spans) * 1e-12 == pytest.approx(result["time_s"])


def test_too_many_messages_are_refused_before_they_are_run(monkeypatch):
    monkeypatch.setattr(messages, "MESSAGE_LIMIT", 10)
    with pytest.raises(LoomError, match=r"--trace: \d+ messages are more than the 10"):
        drawn("ring", "all_to_all", 1e6, 16)


def test_the_command_writes_what_perfetto_opens(tmp_path, capsys):
    file = tmp_path / "c.json"
    assert main(["collective", "ring", "all_reduce", "1 MiB", "--chips", "4", "--trace", str(file)]) == 0
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert main(["collective", "ring", "all_reduce", "0", "--chips", "4", "--trace", str(file)]) == 0
    assert [event["ph"] for event in json.loads(file.read_text())["traceEvents"]] == ["M"]
    capsys.readouterr()
    assert main(["collective", "ring", "all_reduce", "1 MiB", "--trace", str(tmp_path / "c.kanata")]) == 2
    assert "instructions of one chip" in capsys.readouterr().err

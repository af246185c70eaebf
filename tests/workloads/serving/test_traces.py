"""Traces of requests: every format, what is wrong with a file and where, and when requests come."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.arch.service_level import parse_level
from siliconloom.arch.serving import ServeSettings, read_settings
from siliconloom.workloads.serving.arrivals import timed
from siliconloom.workloads.serving.names import trace_names
from siliconloom.workloads.serving.trace import load_trace

ROWS = [(0.0, 10, 3), (0.5, 700, 1), (2.25, 33, 90)]
CSVS = {
    "own": "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{t},{p},{o}\n" for t, p, o in ROWS),
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:15:{46.68059 + t:.7f},{p},{o}\n" for t, p, o in ROWS),
    "azure 2024": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2024-05-10 00:00:{t + 1:09.6f}+00:00,{p},{o}\n" for t, p, o in ROWS),
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    + "".join(f"{t + 5},ChatGPT,{p},{o},{p + o},Conversation log\n" for t, p, o in ROWS),
    "nanoseconds": "arrival_time_ns,input_toks,output_toks\n"
    + "".join(f"{int(t * 1e9)},{p},{o}\n" for t, p, o in ROWS),
}
JSONLS = {
    "mooncake": [{"timestamp": int(t * 1000), "input_length": p, "output_length": o} for t, p, o in ROWS],
    "llmservingsim": [
        {"request_id": "a", "input_toks": p, "output_toks": o, "arrival_time": 1777142838.25 + t} for t, p, o in ROWS
    ],
}


@pytest.mark.parametrize("name", [*CSVS, *JSONLS])
@pytest.mark.parametrize("packed", [False, True])
def test_one_trace_in_every_format_is_one_trace(name, packed, tmp_path):
    text = CSVS[name] if name in CSVS else "\n".join(map(json.dumps, JSONLS[name])) + "\n"
    path = tmp_path / ("t.csv" if name in CSVS else "t.jsonl")
    if packed:
        path = path.with_suffix(path.suffix + ".gz")
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    found = load_trace(str(path))
    assert found.arrival_s == pytest.approx([t for t, _, _ in ROWS], abs=1e-6)
    assert found.prompt.tolist() == [p for _, p, _ in ROWS]
    assert found.output.tolist() == [o for _, _, o in ROWS]


HEAD = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEAD + "0,1,1\n2,5,5\n1,5,5\n", ":4:1: arrival_s: requests must stand in the order in which they come"),
        (HEAD + "0,0,1\n", ":2:3: prompt_tokens: must be from 1 to 16,777,216 (got 0)"),
        (HEAD + "0,1.5,1\n", ":2:3: prompt_tokens: must be a whole number (got 1.5)"),
        (HEAD + "0,abc,5\n", ":2:3: prompt_tokens: must be a number (got 'abc')"),
        (HEAD + '"0", 1, many\n', ":2:9: output_tokens: must be a number (got ' many')"),
        (HEAD + "0,1,many\n", ":2:5: output_tokens: must be a number (got 'many')"),
        (HEAD + "0,1,\n", ":2:5: output_tokens: must be a number (got nothing)"),
        (HEAD + "nan,1,1\n", ":2:1: arrival_s: must be a number (got 'nan')"),
        (HEAD + "0,1\n", ":2: 2 cells in a table of 3 columns"),
        (HEAD, "has no requests"),
        ("", "is empty"),
        ("a,b\n1,2\n", "has no column prompt_tokens (or ContextTokens"),
        ("prompt_tokens,ContextTokens,output_tokens\n1,1,1\n", "prompt_tokens and ContextTokens, which say the same"),
        ("prompt_tokens,prompt_tokens,output_tokens\n1,1,1\n", ":1: the column prompt_tokens stands twice"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-45 1:2,1,1\n", ":2:1: TIMESTAMP: must be a date and a time"),
        ("prompt_tokens,output_tokens,prefix\n8,1,a\n", "has prefix without prefix_tokens"),
        ("prompt_tokens,output_tokens,prefix,prefix_tokens\n8,1,a,9\n", ":2:7: prefix_tokens: must be from 1 to the 8"),
        (
            "prompt_tokens,output_tokens,prefix,prefix_tokens\n8,1,a,4\n8,1,a,5\n",
            ":3:7: prefix_tokens: the prefix 'a' has 4 tokens above (got 5)",
        ),
        (HEAD.replace("output", "prompt"), "stands twice"),
        (HEAD + "1e308,1,1\n1.7e308,1,1\n", ":3:1: arrival_s: is 7e+307 s after the first request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00,1,1\nnow,1,1\n", ":3:1: TIMESTAMP: must be a date"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00+00:00,1,1\n2024-01-01 00:30+01:00,1,1\n",
            ":3:1: TIMESTAMP: requests must stand in the order",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00+00:00,1,1\n2024-01-01 00:30,1,1\n",
            ":3:1: TIMESTAMP: must be a date",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text, told, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(LoomError) as caught:
        load_trace(str(path))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"prompt_tokens": 4, "output_tokens": 2}\n[1]\n', ":2: must be an object"),
        ('{"prompt_tokens": 4,\n', ":1: is no JSON"),
        ('{"prompt_tokens": true, "output_tokens": 2}\n', ":1: prompt_tokens: must be a number (got true)"),
        ('{"prompt_tokens": 4, "output_tokens": 2}\n{"prompt_tokens": 4}\n', ":2: output_tokens: must be a number"),
        (
            '{"prompt_tokens": 4, "output_tokens": 2, "hash_ids": "x"}\n',
            ":1: hash_ids: must be a list of whole numbers",
        ),
        ("\n\n", "is empty"),
        ('{"prompt_tokens": 4, "output_tokens": 2, "hash_ids": [1.5, true]}\n', ":1: hash_ids: must be a list"),
    ],
)
def test_what_is_wrong_in_json_lines_is_told_with_its_line(text, told, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(LoomError) as caught:
        load_trace(str(path))
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["azure-con", "0x5", "5x0", "t.csv", "nowhere/t.csv", ""])
def test_a_trace_that_is_none_is_told(name):
    with pytest.raises(LoomError):
        load_trace(name)


@pytest.mark.slow(seconds=1)
def test_the_librarys_traces_are_those_that_were_published():
    counts = {name: len(load_trace(name)) for name in trace_names()}
    assert counts == {
        "azure-code": 8819,
        "azure-conv": 19366,
        "mooncake-conversation": 12031,
        "mooncake-synthetic": 3993,
    }
    conversation = load_trace("mooncake-conversation")
    assert all(sum(n for _, n in path) == p for path, p in zip(conversation.segments, conversation.prompt, strict=True))


def test_turns_begin_with_what_was_said_before(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,session\n10,5,a\n8,2,b\n25,4,a\n20,4,a\n")
    trace = load_trace(str(path))
    first, other, second, third = trace.segments
    assert [n for _, n in first] == [10]
    assert second[: len(first)] == first
    assert second[1] == (trace.answer[0], 5)
    assert sum(n for _, n in second) == 25
    assert third[0] != first[0]  # fewer tokens than were said: nothing is known to be shared
    assert other[0] not in (*first, *second)


@pytest.mark.slow(seconds=1)
@settings(max_examples=25)
@given(
    st.sampled_from(["trace", "poisson", "gamma", "uniform"]),
    st.floats(0.1, 50),
    st.integers(2, 400),
    st.integers(0, 9),
)
def test_a_rate_is_what_comes_out(kind, rate, count, seed):
    keys = {"gamma": {"burstiness": 2.0}}.get(kind, {}) | ({"seed": seed} if kind in ("poisson", "gamma") else {})
    asked = ServeSettings(arrivals=kind, rate=rate, requests=count, skip=5, **keys)
    trace = load_trace("azure-code")
    served = timed(trace, asked)
    assert len(served) == count
    assert served.arrival_s[0] == 0
    assert (np.diff(served.arrival_s) >= 0).all()
    assert served.prompt.tolist() == trace.prompt[5 : 5 + count].tolist()
    if kind in ("trace", "uniform"):
        assert (count - 1) / served.arrival_s[-1] == pytest.approx(rate)
    assert (timed(trace, asked).arrival_s == served.arrival_s).all()


@pytest.mark.parametrize(("kind", "variation"), [("poisson", 1.0), ("gamma", 3.0)])
def test_gaps_vary_as_asked(kind, variation):
    keys = {"burstiness": variation} if kind == "gamma" else {}
    gaps = np.diff(timed(load_trace("8x8"), ServeSettings(arrivals=kind, rate=4, requests=200_000, **keys)).arrival_s)
    assert gaps.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.03)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"nonsense": "1"}, "unknown key"),
        ({"burstiness": "2"}, "burstiness"),
        ({"seed": "3"}, "seed"),
        ({"arrivals": "poisson"}, "needs serve.rate"),
        ({"arrivals": "at_once", "rate": "3"}, "changes nothing"),
        ({"arrivals": "gamma", "rate": "3"}, "needs serve.burstiness"),
        ({"preemption": "swap"}, "needs serve.host_bandwidth"),
        ({"host_bandwidth": "3 GB/s"}, "changes nothing"),
        ({"batching": "static", "token_budget": "7"}, "token_budget"),
        ({"batching": "static", "chunked": "false"}, "chunked"),
        ({"memory_share": "1.5"}, "memory_share"),
        ({"rate": "-1"}, "rate"),
        ({"rate": ".nan"}, "rate"),
        ({"rate": ".inf"}, "rate"),
        ({"max_sequences": "true"}, "max_sequences"),
    ],
)
def test_keys_that_contradict_or_do_nothing_are_refused(keys, told):
    with pytest.raises(LoomError) as caught:
        read_settings([(f"serve.{name}", value) for name, value in keys.items()])
    assert told in str(caught.value)
    assert str(caught.value).startswith("--set serve.")


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=2", "ttft=-2s", "tfft=2s", "ttft=2s,ttft=3s", "ttft=2 km", "ttft=0s"]
)
def test_limits_that_are_none_are_refused(text):
    with pytest.raises(LoomError, match="--slo"):
        parse_level(text)


def test_limits_are_seconds():
    level = parse_level("ttft=2s,tpot=50ms")
    assert level.asked == pytest.approx({"ttft_s": 2.0, "tpot_s": 0.05})


def test_small_numbers_under_timestamp_are_no_dates_and_blank_lines_are_passed_over(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\n\ntimestamp,prompt_tokens,output_tokens\n1e-3,1,1\n2000,1,1\n")
    assert load_trace(str(path)).arrival_s[1] == pytest.approx(2.0, rel=1e-5)

"""Every key of ``serve.`` changes what a service comes to, or is refused where it would change nothing."""

import functools
import json

import numpy as np
import pytest

import siliconloom as sl
from siliconloom.arch.serving import ServeSettings

DRAWN = np.random.default_rng(3)
COUNT = 40
TRACE = {
    "arrival_s": np.sort(DRAWN.uniform(0, 0.3, COUNT)).tolist(),
    "prompt_tokens": DRAWN.integers(100, 600, COUNT).tolist(),
    "output_tokens": DRAWN.integers(2, 60, COUNT).tolist(),
    "prefix": DRAWN.choice(["a", "b", "c"], COUNT).tolist(),
    "prefix_tokens": [96] * COUNT,
    "priority": DRAWN.integers(0, 3, COUNT).tolist(),
}
TIGHT = {"cache_tokens": 2400}
"""Memory for a few requests, so that some are sent back to the queue."""
SWAPPED = {**TIGHT, "preemption": "swap", "host_bandwidth": "1 GB/s"}
RANDOM = {"arrivals": "poisson", "rate": 400}
FEW = {"max_sequences": 4}
ROWS = [
    ("requests", {}, 20),
    ("skip", {"requests": 20}, 1),
    ("rate", {}, 30.0),
    ("arrivals", {"rate": 300.0}, "uniform"),
    ("arrivals", {}, "at_once"),
    ("burstiness", {"arrivals": "gamma", "rate": 400, "burstiness": 0.5}, 3.0),
    ("seed", RANDOM, 1),
    *(("batching", {}, kind) for kind in ("prefill_first", "static")),
    ("max_sequences", {}, 4),
    ("token_budget", {}, 256),
    ("chunked", {"token_budget": 640}, False),
    *(("order", FEW, kind) for kind in ("priority", "shortest")),
    ("preemption", {**TIGHT, "host_bandwidth": None}, "swap"),
    ("host_bandwidth", SWAPPED, "50 GB/s"),
    ("block", TIGHT, 64),
    ("memory_share", {}, 0.5),
    ("watermark", TIGHT, 0.3),
    ("prefix_cache", {}, False),
    ("cache_tokens", {}, 2400),
    ("prefill_replicas", {}, 1),
    *(("router", {}, kind) for kind in ("least_loaded", "prefix")),
    ("price", {}, 2.0),
    ("electricity", {}, 0.3),
]
NOTHING = [
    ("burstiness", {}, 2.0, "is of serve.arrivals gamma"),
    ("seed", {}, 2, "changes nothing"),
    ("host_bandwidth", {}, "1 GB/s", "changes nothing"),
    ("chunked", {"batching": "static"}, False, "is of serve.batching continuous"),
    ("token_budget", {"batching": "static"}, 512, "is not of serve.batching static"),
    ("rate", {"arrivals": "at_once"}, 3.0, "changes nothing"),
]


def came_to(settings):
    """What a service of two GPUs comes to, without what was asked."""
    return known(json.dumps(settings))


@functools.cache
def known(text):
    settings = json.loads(text)
    sets = {"workload.layers": 1, "plan.data": 2, **{f"serve.{key}": value for key, value in settings.items()}}
    found = sl.serve("dgx-h100", "gpt2", TRACE, sets).to_dict()
    for name in ("asked", "simulator", "costs", "notes"):
        del found[name]
    return json.dumps(found)


@pytest.mark.parametrize(("key", "base", "value"), ROWS)
def test_a_key_changes_what_a_service_comes_to(key, base, value):
    base = {name: each for name, each in base.items() if each is not None}
    more = {"host_bandwidth": "1 GB/s"} if value == "swap" else {}
    assert came_to(base) != came_to({**base, **more, key: value})


@pytest.mark.parametrize(("key", "base", "value", "told"), NOTHING)
def test_a_key_that_would_change_nothing_is_refused(key, base, value, told):
    with pytest.raises(sl.LoomError, match=told):
        came_to({**base, key: value})


def test_every_key_of_a_service_has_a_row():
    assert {key for key, _, _ in ROWS} == set(ServeSettings.model_fields)

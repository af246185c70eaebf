"""Requests that move between replicas, as ``loom serve`` answers: what it says, and what it refuses."""

import pytest

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.served import ServingResult
from siliconloom.cli import main
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.serving_run import serve
from siliconloom.render.report_serving import serving_html

SHORT = [("workload.layers", "2"), ("plan.tensor", "1"), ("plan.data", "3"), ("serve.cache_tokens", "1200")]
MOVES = [("serve.migrate_below", "150"), ("serve.migrate_every", "0.01")]
FLEET = """
kind: fleet
name: two
groups:
  - {machine: dgx-h100, plan: {tensor: 1, data: 3}, count: 1}
"""


@pytest.fixture
def busy(tmp_path):
    """Long answers on one replica of three, which bring it out of room."""
    rows = [f"{n * 0.004:.3f},{700 if n % 3 == 0 else 20},{300 if n % 3 == 0 else 3}" for n in range(30)]
    path = tmp_path / "busy.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return str(path)


def test_moves_are_told_and_shorten_the_wait(busy):
    stay, moved = (serve(prepare_named("dgx-h100", "llama3-8b", busy, [*SHORT, *keys])) for keys in ([], MOVES))
    ServingResult.model_validate(moved)
    migration = moved["migration"]
    assert migration["moved"] > 3
    assert migration["copied_tokens"] >= 700 * migration["moved"]
    # a block of 16 tokens in 2 layers at most, 8 KiB a token, over the node's links and switch
    assert 0 < migration["apart_s"] < 16 * 8192 / 300e9 + 20e-6
    assert moved["e2e_s"]["p99"] < stay["e2e_s"]["p99"]
    assert moved["requests"] == stay["requests"]
    assert "migration" not in stay
    assert "scaling" not in moved
    assert "moves to another replica" in serving_html(moved)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"serve.migrate_above": 9}, "changes nothing without serve.migrate_below"),
        ({"serve.migrate_every": 9}, "changes nothing without serve.migrate_below"),
        ({"serve.migrate_below": 9, "serve.migrate_above": 8}, "must be at least serve.migrate_below, 9"),
        ({"serve.migrate_below": 9, "serve.batching": "static"}, "is not of serve.batching static"),
        ({"serve.migrate_below": 9, "serve.prefill_replicas": 2}, "is not of serve.prefill_replicas"),
        ({"serve.migrate_below": 9, "plan.data": 1}, "changes nothing: there is one replica"),
        ({"serve.migrate_below": "true"}, "must be a number"),
        (
            {"serve.migrate_below": 600, "serve.cache_tokens": 1200},
            "nobody takes requests: a replica has room for 1,200",
        ),
        ({"serve.migrate_below": 9, "plan.pipeline": 2}, "not supported: serve.migrate_below with plan.pipeline 2"),
    ],
)
def test_what_makes_nothing_of_moves_is_told_in_a_line(keys, told, capsys):
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    asked = ["serve", "dgx-h100", "llama3-8b", "64x8", "--set", "serve.requests=4", "--set", "plan.tensor=1"]
    assert main([*asked, *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


def test_requests_of_a_fleet_move_over_its_link(busy, tmp_path):
    path = tmp_path / "fleet.yaml"
    link = "link: {count: 1, bandwidth: 1 GB/s, latency: 5 us}\n"
    sets = [pair for pair in SHORT if not pair[0].startswith("plan.")]
    path.write_text(FLEET)
    with pytest.raises(LoomError, match=r"keys and values move over the fleet's link, which is missing"):
        serve(prepare_named(str(path), "llama3-8b", busy, [*sets, *MOVES]))
    path.write_text(FLEET + link)
    with pytest.raises(LoomError, match=r"link: changes nothing: all replicas do whole requests, and none move"):
        serve(prepare_named(str(path), "llama3-8b", busy, sets))
    migration = serve(prepare_named(str(path), "llama3-8b", busy, [*sets, *MOVES]))["migration"]
    assert migration["moved"] > 0
    assert 5e-6 <= migration["apart_s"] <= 5e-6 + 16 * 8192 / 1e9
    path.write_text(FLEET.replace("plan:", "role: prompts, plan:") + "  - {machine: dgx-h100, role: answers}\n" + link)
    with pytest.raises(NotSupported, match=r"serve\.migrate_below with replicas for prompts and for answers"):
        prepare_named(str(path), "llama3-8b", busy, [*sets, *MOVES])

"""Replicas that come and go, from keys to money: what is paid for, what is told, and what is refused."""

import numpy as np
import pytest

from siliconloom.arch.errors import LoomError
from siliconloom.arch.served import ServingResult
from siliconloom.arch.service_level import parse_level
from siliconloom.cli import main
from siliconloom.evaluate.capacity import find_capacity
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.serving_run import serve
from siliconloom.render.report_serving import serving_html
from tests.in_turn import in_turn

SCALED = [("serve.replicas_least", "1"), ("serve.scale_at", "900"), ("serve.start_s", "0.2")]
LOST = [("serve.lost_every", "2"), ("serve.restart_s", "0.5")]
SMALL = [("workload.layers", "2"), ("plan.tensor", "1"), ("serve.router", "least_loaded"), ("serve.price", "3.6")]
FLEET = """
kind: fleet
name: both
groups:
  - {machine: dgx-h100, role: whole, plan: {tensor: 1, data: 2}, price: 7.2}
  - {machine: dgx-a100, role: whole, plan: {tensor: 1, data: 3}, price: 3.6}
"""


@pytest.fixture(scope="module")
def bursts(tmp_path_factory):
    """Twenty seconds with a burst in the middle."""
    times = [*np.arange(0, 10, 0.5), *np.arange(10, 13, 0.01), *np.arange(13, 20, 0.5)]
    rows = [f"{at:.3f},{300 + n % 500},{40 + n % 60}" for n, at in enumerate(times)]
    path = tmp_path_factory.mktemp("bursts") / "t.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return str(path)


@pytest.fixture(scope="module")
def stays(bursts):
    """The service with replicas that stay."""
    return serve(prepare_named("dgx-h100", "llama3-8b", bursts, SMALL))


@pytest.mark.parametrize("keys", in_turn([([*SCALED, *LOST],), (SCALED,), (LOST,)], 0))
def test_what_is_paid_for_is_what_the_run_says(bursts, stays, keys):
    result = serve(prepare_named("dgx-h100", "llama3-8b", bursts, [*SMALL, *keys]))
    ServingResult.model_validate(result)
    scaling = result["scaling"]
    assert result["requests"]["finished"] == result["requests"]["count"]
    assert result["cost"]["chip_hours"] == pytest.approx(scaling["replica_s"] / 3600)
    assert result["cost"]["chips_usd"] == pytest.approx(scaling["replica_s"] / 1000)
    assert result["cost"]["chip_hours"] < stays["cost"]["chip_hours"]
    assert result["energy_j"] < stays["energy_j"]
    line = result["timeline"]["replicas"]
    assert np.mean(line) == pytest.approx(scaling["mean"], rel=1e-6)
    assert max(line) <= 8 * (1 + 1e-9)
    if keys is SCALED:
        assert 1 - 1e-9 <= min(line) < max(line)
        assert scaling["started"] > 0 == scaling["lost"] == scaling["remade"]
        assert scaling["replica_s"] >= scaling["mean"] * result["duration_s"]
    assert (scaling["lost"] > 0) == (keys is not SCALED)
    assert "replicas that can work" in serving_html(result)
    assert "replicas" not in stays["timeline"]


@pytest.mark.slow(seconds=2.5)
def test_replicas_of_several_kinds_are_paid_for_at_their_prices(bursts, tmp_path):
    (tmp_path / "fleet.yaml").write_text(FLEET)
    sets = [("workload.layers", "2"), ("serve.router", "least_loaded"), *SCALED]
    result = serve(prepare_named(str(tmp_path / "fleet.yaml"), "llama3-8b", bursts, sets))
    cost, scaling = result["cost"], result["scaling"]
    assert cost["chip_hours"] == pytest.approx(scaling["replica_s"] / 3600)
    assert 3.6 * cost["chip_hours"] < cost["chips_usd"] <= 7.2 * cost["chip_hours"]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"replicas_least": 1}, "needs serve.scale_at"),
        ({"replicas_least": 1, "scale_at": 9}, "needs serve.start_s"),
        ({"scale_at": 9}, "changes nothing without serve.replicas_least"),
        ({"replicas_least": 8, "scale_at": 9, "start_s": 1}, "changes nothing: there is room for 8"),
        ({"replicas_least": 9, "scale_at": 9, "start_s": 1}, "cannot be: there is room for 8"),
        (
            {"replicas_least": 1, "replicas_most": 9, "scale_at": 9, "start_s": 1},
            "replicas_most 9: there is room for 8",
        ),
        ({"replicas_least": 2, "replicas_most": 2, "scale_at": 9, "start_s": 1}, "more than serve.replicas_least, 2"),
        ({"lost_every": 9}, "needs serve.restart_s"),
        ({"restart_s": 9}, "changes nothing without serve.lost_every"),
        ({"lost_every": 9, "restart_s": 1, "batching": "static"}, "is not of serve.batching static"),
        ({"lost_every": 9, "restart_s": 1, "prefill_replicas": 2}, "is not of serve.prefill_replicas"),
    ],
)
def test_what_makes_nothing_of_replicas_that_come_and_go_is_told_in_a_line(keys, told, capsys):
    words = [word for key, value in keys.items() for word in ("--set", f"serve.{key}={value}")]
    asked = ["serve", "dgx-h100", "llama3-8b", "64x8", "--set", "serve.requests=4", "--set", "plan.tensor=1"]
    assert main([*asked, *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


def test_the_fewest_replicas_are_not_looked_for_where_they_come_and_go(bursts):
    served = prepare_named("dgx-h100", "llama3-8b", bursts, [*SMALL, *SCALED])
    with pytest.raises(LoomError, match=r"--find replicas: .*serve\.replicas_least"):
        find_capacity(served, "replicas", parse_level("ttft=1s"), 0.9)

"""Sweeps whose points serve requests: each is a ``loom serve`` of its own, and is kept as any other point."""

import pytest

import siliconloom as sl
from siliconloom.arch.errors import LoomError
from siliconloom.arch.sweep import load_sweep
from siliconloom.cli import main
from siliconloom.sweeps.metrics import SERVED as METRICS
from siliconloom.sweeps.run import run_sweep
from siliconloom.sweeps.shown import stored_result
from tests.sweeps.small import SERVED, sweep, without_times, write

TRACE = "arrival_s,prompt_tokens,output_tokens\n0,64,4\n0.001,200,16\n0.002,8,1\n"


@pytest.mark.slow(seconds=1)
def test_a_point_is_what_serving_it_alone_comes_to(folder):
    (folder / "requests.csv").write_text(TRACE)
    asked = {**SERVED, "trace": "requests.csv", "slo": "ttft=4ms", "set": {"serve.price": 2.0}}
    found = run_sweep(sweep(**asked), workers=1)
    assert len(found.points) == 4
    for point in found.points:
        alone = sl.serve("h100", "gpt2", "requests.csv", {**asked["set"], **point.values}, slo=asked["slo"])
        assert point.metrics["goodput"] == alone.goodput
        assert point.metrics["ttft_p99"] == alone.ttft_s.p99
        assert point.metrics["cost"] == alone.cost.usd_per_million_tokens
        assert point.metrics["attained"] == alone.slo.attained
        assert set(point.metrics) == set(METRICS)
    assert found.asked.trace == "requests.csv"


@pytest.mark.slow(seconds=1)
def test_points_are_found_again_until_the_trace_is_another_one(folder, capsys):
    (folder / "requests.csv").write_text(TRACE)
    path = write(folder, **{**SERVED, "trace": "requests.csv", "set": {}})
    first, again = (run_sweep(path, "kept.sqlite", workers=1) for _ in range(2))
    assert (first.counts.evaluated, again.counts.evaluated, again.counts.reused) == (4, 0, 4)
    assert without_times(again) == without_times(first) == without_times(stored_result("kept.sqlite")[0])
    assert main(["show", "kept.sqlite", "--report", "page.html"]) == 0
    assert "requests of requests.csv" in capsys.readouterr().out
    assert "requests of requests.csv" in (folder / "page.html").read_text()
    (folder / "requests.csv").write_text(TRACE.replace("200", "300"))
    assert run_sweep(path, "kept.sqlite", workers=1).counts.evaluated == 4


def test_a_value_that_a_service_refuses_is_a_failed_point():
    asked = {**SERVED, "keys": {"serve.token_budget": [128, 512]}}
    found = run_sweep(sweep(**asked), workers=1)
    assert [point.state for point in found.points] == ["failed", "done"]
    assert "serve.token_budget 128: is less than the 256 requests" in found.points[0].why


def test_a_cost_without_a_price_is_told():
    with pytest.raises(LoomError, match="has no cost"):
        run_sweep(sweep(**{**SERVED, "objectives": ["cost"]}), workers=1)


@pytest.mark.checkout
def test_the_example_of_a_service_is_read():
    from tests.test_documents import ROOT

    found, _ = load_sweep(ROOT / "examples" / "serving-sweep.yaml")
    assert found.trace == "azure-conv"

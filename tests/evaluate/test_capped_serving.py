"""Services under a limit of power, and GPUs that are held, as commands answer."""

import pytest

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.served import ServingResult
from siliconloom.cli import main
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.serving_run import serve
from siliconloom.render.report_serving import serving_html
from siliconloom.render.serving import serving_tables
from siliconloom.render.tables import console

BUSY = [
    ("workload.layers", "2"),
    ("plan.tensor", "1"),
    ("plan.data", "2"),
    ("serve.requests", "120"),
    ("serve.rate", "400"),
    ("serve.arrivals", "uniform"),
]
APART = 6 * 120
"""Watts of the GPUs that are in no replica."""
LIMITED = [
    ("serve.power_limit", f"{400 + APART}"),
    ("serve.capped_clock", "[0.8, 0.6, 0.4]"),
    ("serve.power_every", "0.02"),
]


@pytest.mark.slow(seconds=1.5)
def test_a_limit_is_kept_to_by_lower_clocks_which_take_longer(capsys):
    free, held = (serve(prepare_named("dgx-h100", "llama3-8b", "512x40", [*BUSY, *keys])) for keys in ([], LIMITED))
    ServingResult.model_validate(held)
    power = held["power"]
    assert "power" not in free
    assert power["limit_w"] == 400 + APART < power["peak_w"]
    assert 0 < power["over"] < 0.5
    assert 0 < power["capped_s"] <= held["duration_s"]
    assert 0.4 <= power["least_clock"] < 1
    assert held["duration_s"] > free["duration_s"]
    assert held["energy_j"] < free["energy_j"]
    assert held["costs"]["audit_max"] < 0.02  # steps at lower clocks are not compared with those at full
    serving_tables(held, console())
    assert "clocks lowered" in capsys.readouterr().out
    assert "of the limit" in serving_html(held)


@pytest.mark.slow(seconds=1)
def test_what_is_never_drawn_is_no_limit():
    keys = [("serve.power_limit", f"{1399 + APART}"), *LIMITED[1:]]
    free, held = (serve(prepare_named("dgx-h100", "llama3-8b", "512x40", [*BUSY, *more])) for more in ([], keys))
    assert held["power"]["capped_s"] == held["power"]["over"] == 0
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert held[name] == pytest.approx(free[name]), name
    assert held["energy_j"] == pytest.approx(free["energy_j"])


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"serve.capped_clock": 0.5}, "changes nothing without serve.power_limit"),
        ({"serve.power_limit": 400}, "needs serve.capped_clock"),
        ({"serve.power_limit": 400, "serve.capped_clock": "[0.5, 0.6]"}, "shares of the clock must fall"),
        ({"serve.power_limit": 400, "serve.capped_clock": 0.5, "serve.batching": "static"}, "is not of serve.batching"),
        ({"serve.power_limit": 400, "serve.capped_clock": 0.5, "plan.pipeline": 2}, "with plan.pipeline 2"),
    ],
)
def test_what_makes_nothing_of_a_limit_is_told_in_a_line(keys, told, capsys):
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    asked = ["serve", "dgx-h100", "llama3-8b", "64x8", "--set", "serve.requests=4", "--set", "plan.tensor=1"]
    assert main([*asked, *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ([("serve.power_limit", "960")], r"serve\.power_limit 960: chips draw 960 W at work on nothing"),
        (
            [("serve.power_limit", "2120")],
            r"changes nothing: the boards' own limits are 2120 W together, with 720 W of those in no replica",
        ),
        ([("chip.locked_clock", "600MHz")], r"capped_clock 0\.6: of the locked clock, 600 MHz, is below 366 MHz"),
    ],
)
def test_limits_and_clocks_that_cannot_be_are_told(keys, told):
    with pytest.raises(LoomError, match=told):
        serve(prepare_named("dgx-h100", "llama3-8b", "512x40", [*BUSY, *LIMITED, *keys]))


@pytest.mark.slow(seconds=1)
def test_a_run_that_is_over_before_anybody_looks_is_looked_at_in_the_end():
    """Standing power and steps over the whole run: the energy that is told, over its time.

    Six GPUs are in no replica: they stand at 120 W, and the limit is of them, too.
    """
    sets = [
        *BUSY,
        ("serve.power_limit", f"{250 + APART}"),
        ("serve.capped_clock", "0.5"),
        ("serve.power_every", "1000"),
    ]
    found = serve(prepare_named("dgx-h100", "llama3-8b", "512x40", sets))
    assert found["power"]["peak_w"] == pytest.approx(found["power_w"], rel=1e-6)
    assert found["power"]["over"] == 1
    assert found["power"]["capped_s"] == 0


@pytest.mark.slow(seconds=3)
def test_power_of_replicas_that_come_and_go_is_that_of_their_time():
    """Every look's watts times its seconds are the energy of the run, whoever was there when."""
    kept = []
    sets = [
        *BUSY,
        *LIMITED,
        ("serve.lost_every", "0.04"),
        ("serve.restart_s", "0.02"),
        ("serve.router", "least_loaded"),
    ]
    found = serve(prepare_named("dgx-h100", "llama3-8b", "512x40", sets), kept=kept)
    fleet = kept[0]
    power, begin = fleet.elastic.power, float(fleet.requests.arrival_s[0])
    assert found["scaling"]["lost"] > 0
    told = sum(look.watts * (look.at - look.begin) for look in power.looks)
    stood = sum(fleet.elastic.paid(begin, power.looked)) * 120.0 + APART * (power.looked - begin)
    assert told == pytest.approx(stood + sum(engine.account.joules for engine in fleet.engines), rel=1e-6)


def test_chips_of_ours_and_measured_profiles_have_no_lower_clocks():
    with pytest.raises(NotSupported, match=r"serve\.power_limit on npu-datacenter: only GPUs"):
        prepare_named("npu-datacenter", "llama3-8b", "64x8", LIMITED)
    with pytest.raises(LoomError, match=r"--profile with serve\.power_limit"):
        prepare_named("rtx-pro-6000", "llama3-8b", "64x8", [("serve.requests", "9"), *LIMITED], profile="measured")


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("key", ["power_cap=400", "locked_clock=1.2GHz"])
def test_held_gpus_answer_every_command(key, capsys):
    for words in (
        ["sim", "h100", "llama3-8b", "--set", key],
        ["sim", "dgx-h100", "llama3-8b", "--set", f"chip.{key}", "--set", "plan.tensor=2"],
        ["serve", "h100", "llama3-8b", "64x8", "--set", "serve.requests=4", "--set", key],
    ):
        assert main(words) == 0, capsys.readouterr().err

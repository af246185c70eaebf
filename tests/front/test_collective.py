"""``loom collective`` as a command: keys, bounds, bad input."""

import json

import pytest
from typer.testing import CliRunner

from siliconloom.arch import LoomError
from siliconloom.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["collective", *arguments])


@pytest.mark.parametrize("system", ["ring", "switch", "fully-connected", "torus-2d", "dgx-h100", "npu-x4-ring"])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "broadcast", "send_receive"])
def test_every_system_answers_above_its_bound(system, operation, tmp_path):
    target = tmp_path / "out.json"
    done = run(system, operation, "64 KiB", "--json", str(target))
    assert done.exit_code == 0, done.output
    result = json.loads(target.read_text())
    assert {"time_s", "bus_bandwidth", "lower_bound_s", "links", "algorithm", "tried"} <= set(result)
    assert result["time_s"] >= result["lower_bound_s"] > 0
    assert {"from", "to", "bytes", "busy"} <= set(result["links"][0])


def test_overrides_reach_the_link(tmp_path):
    times = []
    for bandwidth in ("50 GiB/s", "100 GiB/s"):
        target = tmp_path / "out.json"
        done = run("ring", "all_reduce", "67108864", "--chips", "4", "--set", f"link.bandwidth={bandwidth}",
                   "--set", "link.latency=500 ns", "--set", "algorithm=ring", "--json", str(target))  # fmt: skip
        assert done.exit_code == 0, done.output
        times.append(json.loads(target.read_text())["time_s"])
    assert times[0] == pytest.approx(1923142e-9, rel=0.01)  # ASTRA-sim 2
    assert times[1] < times[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rin", "all_reduce", "8"), "did you mean 'ring'"),
        (("ring", "allreduce", "8"), "did you mean 'all_reduce'"),
        (("ring", "all_reduce", "many"), "BYTES"),
        (("dgx-h100", "all_reduce", "8", "--chips", "9"), "has 8 chips"),
        (("torus-2d", "all_reduce", "8", "--set", "topology.shape=[3,3]"), "has 9 places for 16 chips"),
        (("ring", "all_reduce", "8", "--set", "algorithm=in_switch"), "not supported: in_switch"),
        (("ring", "all_reduce", "8", "--set", "link.bandwidth=0 GB/s"), "greater than zero"),
        (("ring", "all_reduce", "8", "--set", "topology.kind=rng"), "topology.kind"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    done = run(*arguments)
    assert done.exit_code != 0
    assert isinstance(done.exception, LoomError)
    assert message in str(done.exception)

"""``loom collective`` as a command: keys, bounds, bad input."""

import json

import pytest
from typer.testing import CliRunner

from siliconloom.arch import LoomError, NotSupported, load_system
from siliconloom.arch.gpu_system import joined
from siliconloom.arch.names import network_names, system_names
from siliconloom.cli import app
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.collective import collective_result, load_any
from siliconloom.mapper.network.collectives import OPERATIONS


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


@pytest.mark.parametrize("system", [*network_names(), *system_names()])
def test_of_nothing_no_message_is_sent_and_no_time_passes(system):
    described, chips = load_any(system, [], None)
    for operation in OPERATIONS:
        for options in ({}, {"flows": True}, {"exact": True}, {"predicted": True}):
            found = collective_result(described, operation, 0.0, chips, **options)
            assert (found["time_s"], found["messages"], found["algorithm"]) == (0.0, 0, "none"), operation
            assert not any(link["bytes"] or link["busy"] for link in found["links"])
        assert chips > 16 or collective_result(described, operation, 1.0, chips)["time_s"] > 0


@pytest.mark.parametrize("operator", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_a_collective_of_nothing_in_a_program_waits_for_nobody(tmp_path, operator):
    file, target = tmp_path / "steps.yaml", tmp_path / "out.json"
    for which, late in ((f"{operator}: {{bytes: 0}}", 1), ("barrier: {}", 8)):
        file.write_text(
            "kind: communication\nname: none\nprogram:\n"
            f"  - {{ranks: 0, do: [compute: {{time: 1 ms}}]}}\n  - {{ranks: all, do: [{which}]}}\n"
        )
        assert run("ring", str(file), "--chips", "8", "--json", str(target)).exit_code == 0
        ranks = json.loads(target.read_text())["ranks"]
        assert sum(rank["finish_s"] >= 1e-3 for rank in ranks) == late


def test_overrides_reach_the_link(tmp_path):
    times = []
    for bandwidth in ("50 GiB/s", "100 GiB/s"):
        target = tmp_path / "out.json"
        done = run(
            "ring",
            "all_reduce",
            "67108864",
            "--chips",
            "4",
            "--set",
            f"link.bandwidth={bandwidth}",
            "--set",
            "link.latency=500 ns",
            "--set",
            "algorithm=ring",
            "--json",
            str(target),
        )
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


PROGRAM = """kind: communication
name: steps
splits:
  tensor: {size: 4}
  data: {size: 2, stride: 4}
program:
  - repeat: 2
    do:
      - compute: {time: 10 us}
      - all_reduce: {group: tensor, bytes: 1 MiB}
      - all_to_all: {group: data, bytes: [[0, 65536], [1 MiB, 0]]}
  - {ranks: 0, do: [send: {to: 7, bytes: 3 MB}]}
  - {ranks: 7, do: [receive: {from: 0}]}
"""


def test_a_program_says_when_each_rank_and_operator_is_done(tmp_path):
    file, target = tmp_path / "steps.yaml", tmp_path / "out.json"
    file.write_text(PROGRAM)
    done = run("ring", str(file), "--chips", "8", "--json", str(target))
    assert done.exit_code == 0, done.output
    assert "program" in done.output
    result = json.loads(target.read_text())
    assert result["schema"] == "siliconloom.communication/1"
    assert result["time_s"] >= result["lower_bound_s"] > 20e-6
    assert {"from", "to", "bytes", "busy"} <= set(result["links"][0])
    assert max(rank["finish_s"] for rank in result["ranks"]) == result["time_s"]
    kinds = [each["operator"] for each in result["operations"]]
    assert kinds.count("all_reduce") == 4
    assert kinds.count("all_to_all") == 8
    assert all(each["end_s"] >= each["start_s"] for each in result["operations"])
    late = {each["rank"] for each in result["ranks"] if each["finish_s"] == result["time_s"]}
    assert late == {0, 7}
    flows = run("ring", str(file), "--chips", "8", "--flows", "--json", "-")
    assert json.loads(flows.stdout)["time_s"] >= result["lower_bound_s"]


def test_all_to_all_takes_a_square_of_bytes(tmp_path):
    square, target = tmp_path / "bytes.csv", tmp_path / "out.json"
    square.write_text("0,1000000,0\n5e6,0,10\n0,0,7\n")
    done = run("fully-connected", "all_to_all", str(square), "--json", str(target))
    assert done.exit_code == 0, done.output
    result = json.loads(target.read_text())
    assert (result["chips"], result["bytes"]) == (3, 5000010)
    assert sum(link["bytes"] for link in result["links"]) == 6000010
    assert result["time_s"] >= result["lower_bound_s"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("1,2\n3\n", "must have 2 values"), ("1,x\n2,3\n", ":1: "), ("", "is empty"), ("1,2\n3,-4\n", ":2: ")],
)
def test_a_bad_square_is_one_clear_line(text, message, tmp_path):
    square = tmp_path / "bytes.csv"
    square.write_text(text)
    done = run("ring", "all_to_all", str(square))
    assert isinstance(done.exception, LoomError)
    assert message in str(done.exception)


def test_programs_that_are_not_there_or_deadlock(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("kind: communication\nname: bad\nprogram: [{ranks: 0, do: [barrier: {}]}]\n")
    for arguments, message in (
        (("ring", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("ring", str(file), "8"), "a program has its own"),
        (("ring", str(file)), "deadlock: 1 of 1 streams never end: rank 0 in barrier of group 'all' at line 3"),
        (("ring", "all_reduce"), "BYTES"),
    ):
        done = run(*arguments)
        assert isinstance(done.exception, LoomError), done.output
        assert message in str(done.exception)


def test_events_slow_a_program_down_and_name_what_is_not_there(tmp_path):
    file = tmp_path / "steps.yaml"

    def seconds(events):
        file.write_text(PROGRAM + f"events: {events}\n")
        done = run("torus-2d", str(file), "--chips", "8", "--json", "-")
        if done.exit_code:
            raise done.exception
        return json.loads(done.stdout)

    usual = seconds("[]")
    assert usual["sent_again"] == 0
    assert seconds("[{chip: 3, factor: 2}]")["time_s"] == pytest.approx(usual["time_s"] + 20e-6, rel=0.01)
    assert seconds("[{between: [0, 1], bandwidth: 1 GB/s}]")["time_s"] > 2 * usual["time_s"]
    lost = seconds("[{at: 15 us, between: [0, 1], failed: true}]")
    assert lost["sent_again"] > 0
    assert lost["time_s"] > usual["time_s"]
    for events, message in (
        ("[{chip: 8, factor: 2}]", "events.0.chip: must be a chip from 0 to 7 (got 8)"),
        ("[{between: [0, 7], failed: true}]", "events.0.between: there is no link between 0 and 7"),
        ("[{between: [0, 1], bandwidth: 9 TB/s}]", "events.0.bandwidth: must not be more than the link's own 50 GB/s"),
        ("[{chip: 0}]", "a chip's event has factor"),
        ("[{at: 1 us}]", "must have either chip"),
    ):
        with pytest.raises(LoomError) as raised:
            seconds(events)
        assert message in str(raised.value)


def test_the_schema_has_the_keys_as_they_are_written():
    done = CliRunner().invoke(app, ["schema", "communication"])
    schema = json.loads(done.stdout)
    assert set(schema["$defs"]["Receive"]["properties"]) == {"from", "bytes", "tag"}
    assert {"program", "groups", "splits", "events", "timeout"} <= set(schema["properties"])


@pytest.mark.parametrize(
    ("sets", "adds"), [((), False), ((("topology.adds", "true"),), True), ((("topology.adds", "false"),), False)]
)
def test_only_a_switch_that_is_said_to_add_adds_in_a_collective_and_in_a_step_alike(sets, adds):
    size = 16 * 2**20
    system, chips = load_any("npu-datacenter-x8", list(sets), None)
    alone = collective_result(system, "all_reduce", size, chips)
    fabric = cluster_of(load_system("npu-datacenter-x8", list(sets))).fabrics[0]
    step = fabric.seconds("all_reduce", size, 1, chips)
    assert (alone["algorithm"] == "in_switch") == adds
    assert ("in_switch" in alone["tried"]) == adds
    assert step == pytest.approx(alone["time_s"], rel=1e-9 if adds else 0.02)
    assert fabric.seconds("all_reduce", size, 2, 4) < (200e-6 if adds else 2 * step)  # groups of some chips, as well


@pytest.mark.parametrize(
    ("gpus", "sets", "adds"), [("h100", {}, True), ("a100", {}, False), ("h100", {"adds": "false"}, False)]
)
def test_a_switch_of_gpus_adds_where_their_links_say_it(gpus, sets, adds):
    pairs = [(f"topology.{key}", value) for key, value in sets.items()]
    system, _ = load_any(f"dgx-{gpus}", pairs, None)
    assert system.topology.adds is adds
    assert joined(system).link.in_switch is adds
    assert joined(load_system(f"dgx-{gpus}", pairs)).link.in_switch is adds


def test_a_plan_refuses_an_algorithm_that_its_switch_has_not():
    with pytest.raises(NotSupported, match="in_switch"):
        cluster_of(load_system("npu-datacenter-x8", [("algorithm", "in_switch")]))
    with pytest.raises(LoomError, match="one switch for all"):
        load_system("npu-datacenter-x8", [("topology.kind", "ring"), ("topology.adds", "true")])

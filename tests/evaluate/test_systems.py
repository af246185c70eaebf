"""A model on a system of chips whose memory computes."""

import json
import subprocess
import sys

import pytest

from siliconloom.arch import LoomError, NotSupported, load_chip, load_system, memo
from siliconloom.arch.result import StepResult
from siliconloom.arch.system import Policy
from siliconloom.evaluate import chip_machine
from siliconloom.evaluate.channels import row_stream, stream_bandwidth
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.chips import chip_system_result
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.evaluate.system import load_machine, system_step
from siliconloom.reproduce import neupims, neupims_artifact
from siliconloom.workloads import load_workload


@pytest.fixture(scope="module")
def remembered():
    """What the tests of this file find, most of it of the same few layers."""
    return memo.Memo(None)


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch, remembered):
    """What a test finds was found by it or by another one of this file: not by an earlier process."""
    monkeypatch.setattr(memo.Shared, "memo", remembered)


def decode(model="gpt2", batch=8, context=200, **sets):
    pairs = {"phase": "decode", "batch": batch, "context": context} | sets
    return load_workload(model, [(key, str(value)) for key, value in pairs.items()])


def on(graph, *sets, contexts=(), exact=False):
    system, chip = load_machine("neupims", [("policy.tensor", "1"), *sets])
    return StepResult.model_validate(system_step(system, graph, contexts=contexts, chip=chip, exact=exact))


def offloaded(result):
    return result.system.attention["unit"] == "pim"


def products(result):
    return [o.name for o in result.operators if o.unit == "pim" and o.kind == "gemm"]


@pytest.mark.slow(seconds=4)
def test_a_step_has_the_same_keys_as_a_chip_and_holds_its_bound():
    result = on(decode(batch=40))
    assert result.cycles >= result.bound.lower_bound_cycles > 0
    assert result.cycles == sum(w.cycles * w.repeat for w in result.windows)
    for unit in result.units.values():
        assert 0 <= unit.utilization <= 1
        assert (unit.mac_utilization or 0) <= 1
    assert {o.unit for o in result.operators} == {"npu", "pim"}


@pytest.mark.parametrize("batch", [64, *(pytest.param(few, marks=pytest.mark.slow(seconds=2)) for few in (1, 7))])
def test_auto_takes_the_faster_place(batch):
    graph = decode(batch=batch)
    auto = on(graph)
    apart = [on(graph, ("policy.attention", where)) for where in ("npu", "pim")]
    assert auto.cycles == min(s.cycles for s in apart)
    assert offloaded(auto) == (apart[1].cycles <= apart[0].cycles) or apart[0].cycles == apart[1].cycles


@pytest.mark.slow
def test_weights_go_to_memory_for_few_sequences_only():
    assert products(on(decode(batch=1)))
    assert not products(on(decode(batch=256), ("policy.interleave", "never")))
    assert not products(on(decode(batch=1), ("policy.weights", "npu")))


def test_one_row_buffer_is_never_faster_and_cannot_interleave():
    graph = decode(batch=64)
    dual = on(graph)
    assert on(graph, ("chip.pim.dual_row_buffer", "false")).cycles >= dual.cycles
    with pytest.raises(LoomError, match="dual_row_buffer"):
        on(graph, ("chip.pim.dual_row_buffer", "false"), ("policy.interleave", "always"))


@pytest.mark.parametrize("model", ["gpt2", pytest.param("gpt3-13b", marks=pytest.mark.slow(seconds=1.5))])
def test_interleaving_left_out_changes_nothing_but_a_note(model):
    """One sequence has no halves; what that leaves out must not move work from memory to the arrays."""
    graph = decode(model, batch=1, context=500, layers=2)
    never, always = (on(graph, ("policy.interleave", how)) for how in ("never", "always"))
    assert always.cycles == never.cycles
    assert offloaded(always) == offloaded(never)
    assert any("left out: policy.interleave" in note for note in always.notes) == offloaded(always)


@pytest.mark.slow(seconds=3)
def test_windows_of_their_own_are_never_slower():
    graph = decode("gpt3-7b", batch=128, layers=2)
    sets = ("policy.tensor", "4"), ("policy.attention", "pim")
    shared = on(graph, *sets)
    separate = on(graph, *sets, ("chip.pim.activations", "separate"))
    assert separate.cycles <= shared.cycles


def test_uneven_sequences_are_balanced():
    contexts = [1500] * 8 + [20] * 56
    graph = decode(batch=64)
    sets = ("policy.attention", "pim"), ("policy.interleave", "never")
    greedy, turn = (on(graph, *sets, ("policy.balance", how), contexts=contexts) for how in ("greedy", "round_robin"))
    assert greedy.cycles <= turn.cycles
    assert greedy.units["pim"].channel_imbalance >= 1


@pytest.mark.slow(seconds=6)
def test_stages_are_added_until_weights_and_cache_fit():
    small = on(decode("gpt3-13b", batch=32, context=300), ("policy.tensor", "4"))
    large = on(decode("gpt3-13b", batch=256, context=2048), ("policy.tensor", "4"))
    assert small.system.pipeline == 1
    assert large.system.pipeline > 1
    assert large.memory.used_bytes <= 32 * 2**30
    with pytest.raises(LoomError, match=r"weights and cache are .*, 32 x neupims-device hold 1 TiB; it takes"):
        on(decode("gpt3-13b", batch=2560, context=2048), ("policy.tensor", "4"))


@pytest.mark.slow
def test_arrays_are_simulated_once_whatever_their_memory_computes(monkeypatch):
    """Channels that are dealt otherwise, or other contexts, change nothing of the products; twice the sequences do."""
    made = []
    monkeypatch.setattr(memo.Shared, "memo", memo.Memo(None))
    monkeypatch.setattr(chip_machine, "simulate", lambda *given, **named: made.append(1) or simulate(*given, **named))
    sets = [("policy.attention", "pim"), ("policy.interleave", "never")]
    first = on(decode(), *sets)
    once = len(made)
    assert once > 0
    assert on(decode(), *sets, ("policy.balance", "round_robin")).cycles >= first.cycles
    assert on(decode(context=900), *sets).cycles > first.cycles
    assert len(made) == once
    assert on(decode(batch=16), *sets).cycles > first.cycles
    assert len(made) > once


@pytest.mark.slow
def test_exchange_costs_time():
    graph = decode("gpt3-7b", batch=16, layers=2)
    quiet = on(graph, ("policy.tensor", "4"), ("policy.communicate", "false"))
    assert on(graph, ("policy.tensor", "4")).cycles > quiet.cycles


@pytest.mark.slow
def test_chips_that_share_keys_have_a_part_of_every_context():
    """Contexts of their own were not divided: each chip attended to all keys."""
    graph, lengths = decode(batch=8, layers=2, context=600), [180, 600, 1020, 300, 900, 720, 480, 600]
    found = [
        StepResult.model_validate(
            chip_system_result(
                cluster_of(load_system("neupims", [("policy.tensor", "1")])),
                Policy(attention="pim", interleave="never"),
                graph,
                {"context": chips},
                contexts=lengths,
            )
        )
        for chips in (1, 2)
    ]
    taken = [next(o.cycles for o in each.operators if o.kind == "attention") for each in found]
    assert 0.4 < taken[1] / taken[0] < 0.7


@pytest.mark.slow(seconds=1)
def test_energy_of_the_banks_is_that_of_what_they_read():
    graph = decode("gpt3-7b", batch=32, context=2048, layers=2)
    found = on(graph, ("policy.attention", "pim"), ("policy.interleave", "never"), ("policy.weights", "npu"))
    energy = found.energy
    assert energy["pim banks"] == pytest.approx(graph.kv_bytes * 1.51 * 8e-12)  # 2048 tokens fill every row
    assert energy["pim rows"] == pytest.approx(graph.kv_bytes * 909e-12 / 1024)
    assert sum(energy.values()) == pytest.approx(found.energy_j)


@pytest.mark.slow(seconds=2.5)
def test_halves_spend_the_energy_of_the_whole_batch():
    graph = decode("gpt3-7b", batch=64, context=500, layers=4)
    sets = ("policy.attention", "pim"), ("policy.weights", "npu")
    whole, halves = (on(graph, *sets, ("policy.interleave", how)) for how in ("never", "always"))
    assert halves.energy_j >= whole.energy_j  # the weights are read twice
    assert halves.energy["pim banks"] == pytest.approx(whole.energy["pim banks"])
    macs = [{o.name: o.macs for o in result.operators} for result in (whole, halves)]
    assert macs[0] == macs[1]


@pytest.mark.slow(seconds=1.5)
def test_fewer_sequences_than_stages_leave_stages_waiting():
    graph = decode("gpt3-13b", batch=2, layers=8)
    deep = on(graph, ("policy.pipeline", "8"))
    assert deep.system.passes == 2
    stage = sum(w.cycles * w.repeat for w in deep.windows[:-1]) // 2
    assert deep.cycles > 8 * stage  # a token goes through all stages
    assert deep.windows[-1].name == "waiting for other stages, embedding and head"
    assert sum(w.cycles * w.repeat for w in deep.windows) == deep.cycles


@pytest.mark.slow(seconds=1.5)
def test_experts_that_are_not_chosen_are_not_in_the_bound():
    assert 0 < on(decode("mixtral-8x7b", batch=1, layers=2)).bound.achieved <= 1


def test_models_whose_layers_differ_are_refused():
    with pytest.raises(NotSupported, match="layers must be alike"):
        on(decode("deepseek-v3", batch=1, layers=4))


@pytest.mark.slow(seconds=1)
def test_products_in_memory_and_interleaving_exclude_each_other():
    assert not on(decode(batch=64), ("policy.weights", "pim"), ("policy.attention", "pim")).system.interleaved
    with pytest.raises(LoomError, match="leaves products to the arrays"):
        on(decode(batch=64), ("policy.weights", "pim"), ("policy.interleave", "always"))


@pytest.mark.slow(seconds=5)
def test_exact_runs_give_the_same_cycles():
    graph = decode("gpt3-7b", batch=24, layers=4)
    sets = [("policy.tensor", "4")]
    assert on(graph, *sets, exact=True).windows == on(graph, *sets).windows


def test_streams_stay_below_the_pins():
    for name in ("neupims-device", "pim-gpt"):
        pim = load_chip(name).pim
        pins = pim.dram.peak_bandwidth * pim.dram.clock_period / 1e12
        assert 0.7 * pins < stream_bandwidth(pim) <= pins
    assert len(row_stream(pim, 10, 100)) == 10


@pytest.mark.slow(seconds=1)
def test_a_chip_alone_is_a_system_of_one():
    chip = load_chip("pim-gpt")
    found = StepResult.model_validate(system_step(None, decode(batch=1, precision="bf16"), chip=chip))
    assert found.cycles >= found.bound.lower_bound_cycles > 0
    assert found.system.tensor == found.system.pipeline == 1


def test_bad_systems_are_refused(tmp_path):
    with pytest.raises(LoomError, match="at most the 32 chips"):
        load_system("neupims", [("policy.tensor", "8"), ("policy.pipeline", "5")])
    with pytest.raises(LoomError, match="one for each of the 8 sequences"):
        on(decode(batch=8), contexts=[1, 2])
    bare = load_chip("neupims-device").model_copy(update={"pim": None})
    system = load_system("neupims", [("policy.tensor", "1")])
    with pytest.raises(NotSupported, match="whose memory does not compute"):
        system_step(system, decode(batch=2), chip=bare, contexts=[1, 2])


def test_lengths_are_drawn_with_the_stated_mean():
    data = neupims.DATA["ShareGPT"]
    many = neupims.contexts(data, 20_000)
    met = data.answer * (1 + data.variation**2)  # the mean of an answer that is met
    assert sum(many) / len(many) == pytest.approx(data.prompt + met / 2, rel=0.03)


SMALLEST = neupims_artifact.Shape(4096, 4, 8)


def test_the_released_simulator_is_what_its_closed_form_says():
    """Runs of it against the formulas: nothing is fitted, memory is charged at its pins."""
    lengths = {batch: neupims.contexts(neupims.DATA["ShareGPT"], batch) for batch in neupims.BATCHES}
    for (buffers, how, batch), cycles in neupims_artifact.RUNS.items():
        found = neupims_artifact.in_memory(lengths[batch], SMALLEST, buffers == "dual", how)
        assert found == pytest.approx(cycles, rel=0.04)
    for (buffers, context), cycles in neupims_artifact.SINGLE.items():
        found = neupims_artifact.in_memory([context], SMALLEST, buffers == "dual", "greedy")
        assert found == pytest.approx(cycles, rel=0.03)
    for batch, cycles in neupims_artifact.RUN_NAIVE.items():
        found = neupims_artifact.in_memory(lengths[batch], SMALLEST, False, "round_robin", sent=True)
        assert found == pytest.approx(cycles, rel=0.02)
    for batch, cycles in neupims_artifact.RUN_ON_ARRAYS.items():
        assert neupims_artifact.attention_on_arrays(lengths[batch], SMALLEST) == pytest.approx(cycles, rel=0.01)
    for batch, cycles in neupims_artifact.RUN_ARRAYS.items():
        assert 0.9 * cycles < neupims_artifact.on_arrays(batch, SMALLEST) < 0.95 * cycles
    for batch, cycles in neupims_artifact.RUN_HALVES.items():
        assert 0.75 * cycles < neupims_artifact.charged(lengths[batch], SMALLEST).interleaved < 0.8 * cycles


def test_rows_of_the_released_simulator_take_what_its_commands_show():
    rows = [
        neupims_artifact.row_cycles(*shape) for shape in ((8, 4, True), (8, 4, False), (32, 1, True), (32, 1, False))
    ]
    assert rows == [197, 213, 143, 207]


def loom(*arguments):
    command = [sys.executable, "-m", "siliconloom", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow(seconds=7)
def test_the_command_answers_for_systems_chips_and_bare_tiles():
    sets = ["--set", "workload.phase=decode", "--set", "workload.batch=256", "--json", "-"]
    result = json.loads(loom("sim", "neupims", "gpt3-13b", *sets).stdout)
    assert result["system"]["name"] == "neupims"
    assert result["tokens"] == 256
    table = loom("sim", "pim-gpt", "gpt2", "--set", "workload.phase=decode").stdout
    assert "attention in memory" in table
    products = loom("sim", "pim-hbm", "gpt2-block-gemms").stdout
    assert "products in memory" in products
    refused = loom("sim", "pim-hbm", "gpt2")
    assert refused.returncode == 2
    assert "vector operators on a bare pim tile" in refused.stderr
    for machine, message in (("neupims", "--window for a system"), ("pim-hbm", "--trace and --window for a chip")):
        refused = loom("sim", machine, "gpt2", "--trace", "t.json", "--window", "1:2")
        assert refused.returncode == 2
        assert message in refused.stderr

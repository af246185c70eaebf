"""What lies in a replica's memory: experts on the host, pages of the cache, and a store of all replicas."""

import pytest

from siliconloom.arch import LoomError, NotSupported
from siliconloom.cli import main
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.served_model import routed, routing_of
from siliconloom.evaluate.serving_memory import memory_of
from siliconloom.evaluate.serving_run import serve

ALONE = [("serve.requests", "4"), ("serve.arrivals", "uniform"), ("serve.rate", "0.1")]
HOSTED = [*ALONE, ("plan.tensor", "1"), ("serve.expert_bandwidth", "50GB/s")]


def test_experts_on_the_host_leave_their_bytes_and_take_their_time():
    """Mixtral 8x7B: three matrices of 4096 x 14336 in bf16 an expert, 8 in each of 32 layers, of which six stay."""
    expert = 3 * 4096 * 14336 * 2
    with pytest.raises(LoomError, match="leaves no room for keys and values"):
        serve(prepare_named("h100", "mixtral-8x7b", "64x8", HOSTED[:-1]))
    served = prepare_named("h100", "mixtral-8x7b", "64x8", [*HOSTED, ("serve.expert_slots", "6")])
    memory, whole = memory_of(served), served.model.token.weight_bytes
    assert memory.hosted == 32 * 2 * expert
    assert memory.weights == whole - memory.hosted
    kept = []
    found = serve(served, kept=kept)
    assert found["memory"]["hosted_bytes"] == memory.hosted
    assert found["experts"]["load_s"] == pytest.approx(expert / 50e9)
    assert found["experts"]["waited_s"] == pytest.approx(found["experts"]["loads"] * expert / 50e9)
    # prompts of 64 tokens use all eight, of which six are there
    assert found["experts"]["loads"] >= 4 * 32 * 2
    free = serve(
        prepare_named(
            "h100",
            "mixtral-8x7b",
            "64x8",
            [*HOSTED[:-1], ("serve.expert_slots", "6"), *[("serve.expert_bandwidth", "1e9GB/s")]],
        )
    )
    slower = (found["e2e_s"]["mean"] - free["e2e_s"]["mean"]) * 4
    assert slower == pytest.approx(found["experts"]["waited_s"], rel=1e-3)


def test_a_replica_has_as_few_chips_as_what_stays_needs():
    """Nobody says how many chips: with experts on the host one has room."""
    sets = [*ALONE, ("serve.expert_bandwidth", "50GB/s")]
    assert prepare_named("dgx-h100", "mixtral-8x7b", "64x8", ALONE).plan.tensor == 4
    assert prepare_named("dgx-h100", "mixtral-8x7b", "64x8", [*sets, ("serve.expert_slots", "2")]).plan.tensor == 1


def test_popular_experts_stay():
    """A popular expert is used by most tokens, and is there."""
    shares = []
    for popularity in ("0.0", "3.0"):
        sets = [
            *HOSTED,
            ("serve.expert_slots", "4"),
            ("workload.layers", "4"),
            ("workload.expert_popularity", popularity),
        ]
        experts = serve(prepare_named("h100", "mixtral-8x7b", "8x64", sets))["experts"]
        shares.append(experts["loads"] / experts["used"])
    assert shares[0] == pytest.approx(0.5, abs=0.05)
    assert shares[1] < 0.35


@pytest.mark.parametrize(
    ("machine", "model", "more", "why"),
    [
        (
            "h100",
            "llama3-8b",
            ("serve.expert_slots", "2"),
            r"serve.expert_slots: no layer of llama3-8b that runs has experts",
        ),
        ("h100", "mixtral-8x7b", ("serve.expert_slots", "8"), r"expert_slots 8: changes nothing: .* has 8 experts"),
    ],
)
def test_slots_that_say_nothing_are_refused(machine, model, more, why):
    with pytest.raises(LoomError, match=why):
        serve(prepare_named(machine, model, "64x8", [*HOSTED, more]))


@pytest.mark.parametrize("more", [("plan.expert", "2"), ("plan.pipeline", "2")])
def test_experts_on_the_host_of_chips_that_share_otherwise_are_refused(more):
    sets = [*ALONE, ("serve.expert_bandwidth", "50GB/s"), ("serve.expert_slots", "2"), ("plan.tensor", "2"), more]
    with pytest.raises(NotSupported, match=r"serve.expert_slots with plan"):
        prepare_named("dgx-h100", "mixtral-8x7b", "64x8", sets)


def test_which_layers_have_experts():
    mixture, layers = routed(prepare_named("dgx-h100", "deepseek-v3", "64x8", [*ALONE, ("plan.tensor", "8")]).model)
    assert (mixture.experts, mixture.top_k, layers) == (256, 8, 58)


@pytest.mark.parametrize(
    ("model", "page", "tensor", "tokens"),
    [
        ("llama3-8b", "2MiB", 1, 1024),
        ("llama3-8b", "2MiB", 2, 2048),
        ("llama3-8b", "64KiB", 1, 32),
        ("llama3-8b", "100KB", 1, 48),
        ("yi-34b", "2MiB", 2, 2048),
        ("deepseek-v3", "2MiB", 8, 1820),
    ],
)
def test_a_block_is_what_a_page_holds(model, page, tensor, tokens):
    """8 heads of 128 columns in bf16 are 2 KiB a token on one chip; a latent of 576 columns, 1,152 bytes, is whole."""
    sets = [*ALONE, ("plan.tensor", str(tensor)), ("plan.data", "1"), ("workload.layers", "4"), ("serve.page", page)]
    served = prepare_named("dgx-h100", model, "64x8", sets)
    assert served.settings.block == tokens
    memory = memory_of(served)
    in_blocks = memory_of(prepare_named("dgx-h100", model, "64x8", sets[:-1]))
    room = in_blocks.blocks * in_blocks.block * in_blocks.per_token / tensor
    size = 100_000 if page == "100KB" else int(page[:-3]) * (2**20 if page.endswith("MiB") else 1024)
    tensors = 4 if model == "deepseek-v3" else 8
    assert memory.blocks == pytest.approx(room // (size * tensors), abs=1)


def test_pages_that_hold_nothing_or_differ_are_refused(tmp_path):
    with pytest.raises(LoomError, match=r"serve.page 100 B: a token's keys of a layer of llama3-8b take 2,048 bytes"):
        prepare_named("h100", "llama3-8b", "64x8", [*ALONE, ("serve.page", "100B")])
    with pytest.raises(NotSupported, match=r"serve.page on neupims"):
        prepare_named("neupims", "gpt3-7b", "64x8", [*ALONE, ("serve.page", "2MiB")])
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "kind: fleet\nname: two\ngroups:\n- {machine: dgx-h100, plan: {tensor: 2, data: 1}}\n"
        "- {machine: dgx-h100, plan: {tensor: 1, data: 1}}\n"
    )
    with pytest.raises(NotSupported, match=r"serve.page of replicas that differ"):
        prepare_named(str(path), "llama3-8b", "64x8", [*ALONE, ("serve.page", "2MiB")])


def test_a_store_is_of_several_replicas(tmp_path):
    path = tmp_path / "alike.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens\n" + "".join(f"{n},512,8,a,480\n" for n in range(6))
    )
    store = "[{name: store, capacity: 1GiB, bandwidth: 50GB/s, shared: true}]"
    one = [("plan.tensor", "1"), ("plan.data", "2"), ("serve.prefill_replicas", "1")]
    (tmp_path / "one.yaml").write_text("kind: fleet\nname: one\ngroups:\n- {machine: h100, count: 1}\n")
    for machine, more in (("h100", []), ("dgx-h100", one), (str(tmp_path / "one.yaml"), [])):
        with pytest.raises(LoomError, match=r"serve.spill.0.shared true: changes nothing: one replica has prompts"):
            prepare_named(machine, "llama3-8b", str(path), [("serve.spill", store), *more])
    sets = [("plan.tensor", "1"), ("plan.data", "3")]
    small = [("serve.spill", store.replace("1GiB", "50MiB"))]
    with pytest.raises(LoomError, match=r"store has room for 400 tokens, and prompts of alike share 480 or more"):
        serve(prepare_named("dgx-h100", "llama3-8b", str(path), [*sets, *small]))
    staged = [("plan.tensor", "1"), ("plan.pipeline", "4"), ("plan.data", "1")]
    tiny = [("serve.spill", store.replace("1GiB", "3MiB").replace("true", "false"))]
    with pytest.raises(LoomError, match=r"store has 3 MiB for 4 schedulers \(plan.pipeline\)"):
        serve(prepare_named("dgx-h100", "llama3-8b", str(path), [*staged, *tiny]))
    assert serve(prepare_named("dgx-h100", "llama3-8b", str(path), [*staged, ("serve.spill", store)]))["spill"]
    cached = [
        serve(prepare_named("dgx-h100", "llama3-8b", str(path), [*sets, ("serve.spill", tiers)]))["cached_share"]
        for tiers in (store, store.replace("true", "false"))
    ]
    assert cached == [pytest.approx(5 * 480 / (6 * 512)), pytest.approx(3 * 480 / (6 * 512))]


def test_what_bringing_takes_is_of_all_chips_and_told_ahead_where_it_is_said():
    expert, found = 3 * 4096 * 14336 * 2, []
    for tensor, more in ((1, ()), (2, (("serve.expert_ahead", "true"),))):
        sets = [*ALONE, ("serve.expert_bandwidth", "50GB/s"), ("serve.expert_slots", "6"), ("workload.layers", "4")]
        served = prepare_named("dgx-h100", "mixtral-8x7b", "64x8", [*sets, ("plan.tensor", str(tensor)), *more])
        found.append(routing_of(served.cluster, served.model, served.plan, served.settings))
    assert [each.load_s for each in found] == [pytest.approx(expert / 50e9)] * 2
    assert [each.ahead for each in found] == [False, True]
    dense = [*HOSTED, ("serve.expert_slots", "6"), ("workload.experts", "all")]
    served = prepare_named("h100", "mixtral-8x7b", "64x8", dense)
    assert sum(routing_of(served.cluster, served.model, served.plan, served.settings).chances) == 8


def test_a_layer_hides_no_more_than_it_takes():
    """Of a step's seconds those of the layers alone: not the head's, the host's, nor a draft model's."""
    sets = [*HOSTED, ("serve.expert_slots", "2"), ("workload.layers", "2")]
    waited = [
        serve(prepare_named("h100", "mixtral-8x7b", "64x8", [*sets, *more]))["experts"]
        for more in ((), (("serve.expert_ahead", "true"),))
    ]
    assert waited[0]["loads"] == waited[1]["loads"]
    steps, layer_s = 4 * 8, 0.45e-3  # a layer takes 0.35 ms, with a chunk of 64 tokens more
    assert 0 < waited[0]["waited_s"] - waited[1]["waited_s"] < steps * layer_s
    draft = [("serve.speculate", "2"), ("serve.acceptance", "0.5"), ("serve.draft", "smollm2-135m")]
    with pytest.raises(NotSupported, match=r"serve.expert_ahead with serve.draft"):
        serve(prepare_named("h100", "mixtral-8x7b", "64x8", [*sets, *draft, ("serve.expert_ahead", "true")]))
    with pytest.raises(LoomError, match=r"serve.expert_ahead true: changes nothing"):
        serve(
            prepare_named(
                "h100", "mixtral-8x7b", "64x8", [*sets[:-1], ("workload.layers", "1"), ("serve.expert_ahead", "true")]
            )
        )


@pytest.mark.slow(seconds=2)
def test_a_page_says_what_came_from_the_host(tmp_path, capsys):
    page = tmp_path / "page.html"
    sets = [*HOSTED, ("serve.expert_slots", "6"), ("workload.layers", "2")]
    words = [word for key, value in sets for word in ("--set", f"{key}={value}")]
    assert main(["serve", "h100", "mixtral-8x7b", "64x8", *words, "--report", str(page)]) == 0
    assert "uses came from the host" in capsys.readouterr().out
    assert "of the experts that steps used came from the host" in page.read_text()
    assert "of experts lie on the host" in page.read_text()

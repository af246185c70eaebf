"""Fleets of several kinds of machines: what they do together, what they cost, and what is refused."""

import pytest
from msgspec.structs import replace

from siliconloom.arch.document import Document
from siliconloom.arch.errors import DescriptionError, LoomError, NotSupported
from siliconloom.arch.served import ServingResult
from siliconloom.arch.service_level import parse_level
from siliconloom.cli import main
from siliconloom.evaluate import capacity
from siliconloom.evaluate.capacity import find_capacity
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.serving_run import serve

SETS = [("serve.requests", "60"), ("serve.arrivals", "uniform"), ("serve.rate", "8")]


def fleet(*groups, **keys):
    return Document.of({"kind": "fleet", "name": "some", "groups": list(groups), **keys}, "some.yaml")


LINK = {"bandwidth": "25 GB/s", "latency": "5 us"}


def run(*groups, sets=(), **keys):
    served = prepare_named(fleet(*groups, **keys), "llama3-8b", "512x64", [*SETS, *sets])
    result = serve(served)
    ServingResult.model_validate(result)
    return result


def test_a_fleet_of_one_kind_is_what_its_system_is():
    """Eight GPUs one by one, and a machine of eight, each a replica: the same times to the last digit."""
    one = run({"machine": "a100", "count": 8})
    other = serve(prepare_named("dgx-a100", "llama3-8b", "512x64", [*SETS, ("plan.tensor", "1")]))
    for name in ("ttft_s", "tpot_s", "e2e_s", "duration_s", "energy_j"):
        assert one[name] == pytest.approx(other[name], rel=1e-12), name


@pytest.mark.slow(seconds=1)
def test_cost_is_hours_of_each_kind_at_its_price():
    result = run(
        {"machine": "h100", "price": 8},
        {"machine": "a10", "count": 2, "price": 1},
        sets=[("serve.router", "least_loaded")],
    )
    hours = result["duration_s"] / 3600
    assert result["cost"]["chips_usd"] == pytest.approx(hours * 10)
    assert result["cost"]["chip_hours"] == pytest.approx(hours * 3)
    assert result["cost"]["electricity_usd"] == pytest.approx(result["energy_j"] / 3.6e6 * 0.1)
    without = run({"machine": "h100", "price": 8}, {"machine": "a10", "count": 2})
    assert without["cost"]["usd"] is None


@pytest.mark.slow(seconds=1)
def test_the_faster_machine_gets_more_where_the_load_is_looked_at():
    groups = {"machine": "h100"}, {"machine": "a10"}
    fair = run(*groups, sets=[("serve.router", "least_loaded")])["replicas"]
    turns = run(*groups)["replicas"]
    assert fair[0]["requests"] > 2 * fair[1]["requests"]
    assert turns[0]["requests"] == turns[1]["requests"] == 30


@pytest.mark.slow(seconds=1)
def test_the_link_is_crossed_once_by_each_request_with_an_answer():
    """Of a slow link the second token waits, and nothing else: prompts are not touched."""
    groups = {"machine": "h100", "role": "prompts"}, {"machine": "h100", "role": "answers"}
    fast, slow = (run(*groups, link=LINK | {"latency": latency}) for latency in ("1 us", "500 ms"))
    assert fast["ttft_s"] == slow["ttft_s"]
    assert slow["e2e_s"]["mean"] - fast["e2e_s"]["mean"] == pytest.approx(0.5, rel=0.1)
    assert [g["role"] for g in slow["groups"]] == ["prompts", "answers"]
    per_token = fast["memory"]["kv_bytes_per_token"]
    narrow = run(*groups, link=LINK | {"bandwidth": "1 GB/s"})
    moved = 512 * per_token * (1 / 1e9 - 1 / 25e9)
    assert narrow["e2e_s"]["mean"] - fast["e2e_s"]["mean"] == pytest.approx(moved, rel=0.35)


@pytest.mark.parametrize(
    ("groups", "keys", "error", "told"),
    [
        ([{"machine": "h1000"}], {}, LoomError, "groups.0: h1000: no such file"),
        ([{"machine": "h100", "count": 0}], {}, DescriptionError, "groups.0.count"),
        (
            [{"machine": "h100", "role": "prompts"}],
            {"link": LINK},
            DescriptionError,
            "replicas for prompts need others",
        ),
        ([{"machine": "h100", "role": "prompt"}], {}, DescriptionError, "groups.0.role"),
        (
            [{"machine": "h100", "role": "prompts"}, {"machine": "h100", "role": "answers"}],
            {},
            DescriptionError,
            "link: is missing",
        ),
        ([{"machine": "h100"}], {"link": LINK}, LoomError, "link: changes nothing"),
        ([{"machine": "dgx-h100", "plan": {"tensor": 16}}], {}, LoomError, "groups.0: plan.tensor 16"),
        ([{"machine": "h100", "overrides": {"clok": "1 GHz"}}], {}, LoomError, "groups.0: --set clok"),
        ([], {}, DescriptionError, "groups"),
    ],
)
def test_what_is_no_fleet_is_told_with_its_place(groups, keys, error, told):
    with pytest.raises(error) as caught:
        prepare_named(fleet(*groups, **keys), "llama3-8b", "512x64", SETS)
    assert told in str(caught.value)


def test_a_fleets_machines_and_prices_have_their_lines(tmp_path):
    path = tmp_path / "fleet.yaml"
    for group, told in (
        ("machine: nope", r"fleet.yaml:4:14: groups.0: nope: no such file"),
        ("machine: h100\n    overrides: {clok: 1 GHz}", r"fleet.yaml:4:14: groups.0: --set clok"),
        ("machine: h100\n    price: .nan", r"fleet.yaml:5:12: groups.0.price: must be a number \(got nan\)"),
    ):
        path.write_text(f"kind: fleet\nname: x\ngroups:\n  - {group}\n")
        with pytest.raises(DescriptionError, match=told):
            prepare_named(str(path), "gpt2", "64x8", SETS)


def test_keys_that_are_of_one_machine_are_refused():
    two = fleet({"machine": "h100"}, {"machine": "a100"})
    with pytest.raises(LoomError, match="groups of a fleet say what they do"):
        prepare_named(two, "llama3-8b", "512x64", [*SETS, ("serve.prefill_replicas", "1")])
    with pytest.raises(NotSupported, match="--find replicas of a fleet: it has several kinds; --find fleet"):
        find_capacity(prepare_named(two, "llama3-8b", "512x64", SETS), "replicas", parse_level("ttft=1s"), 0.9)
    with pytest.raises(NotSupported, match="--profile of a fleet"):
        prepare_named(two, "llama3-8b", "512x64", SETS, profile="measured")


TRIED = [("serve.router", "least_loaded")]


@pytest.mark.parametrize(
    ("limits", "shared"), [("ttft=150ms,tpot=9ms", False), ("ttft=2s,tpot=60ms", False), ("ttft=300ms,tpot=40ms", True)]
)
def test_the_cheapest_machines_are_those_of_all_numbers(limits, shared):
    """Each number of machines served by itself: none that is cheaper keeps to the limits, and the one found does."""
    kinds = [{"machine": "h100", "count": 1, "price": 2.5}, {"machine": "l40s", "count": 3, "price": 1.1}]
    keys = {}
    if shared:
        kinds, keys = [kinds[0] | {"role": "prompts"}, kinds[1] | {"role": "answers"}], {"link": LINK}
    level = parse_level(limits)
    kept = []
    asked = prepare_named(fleet(*kinds, **keys), "llama3-8b", "512x64", [*SETS, *TRIED])
    result = find_capacity(asked, "fleet", level, 0.9, kept=kept)
    ServingResult.model_validate(result)
    found = result["found"]
    good = []
    for first in range(2):
        for second in range(4):
            if not (first and second if shared else first or second):
                continue
            some = [k | {"count": n} for k, n in zip(kinds, (first, second), strict=True) if n]
            choice = (max(first, second) if shared else first + second) > 1
            sets = [*SETS, *TRIED] if choice else SETS
            one = serve(prepare_named(fleet(*some, **keys), "llama3-8b", "512x64", sets), level)
            if one["slo"]["attained"] >= 0.9:
                good.append((2.5 * first + 1.1 * second, [first, second], one["slo"]["attained"]))
    price, machines, attained = min(good)
    assert (found["value"], list(found["machines"])) == (pytest.approx(price), machines)
    assert result["slo"]["attained"] == pytest.approx(attained)
    idle = (
        "serve.router least_loaded: changes nothing: there is no choice of replicas among the machines that were found"
    )
    assert (idle in result["notes"]) == ((max(machines) if shared else sum(machines)) == 1)
    assert len(kept) == 1
    assert len(kept[0].replicas) == sum(machines)
    assert all(each["value"] <= price and each["attained"] < 0.9 for each in found["tried"][:-1])


WIDE = {"machine": "dgx-h100", "count": 1, "price": 1.0, "plan": {"tensor": "2", "data": "2"}}
"""Two replicas of two chips each."""


@pytest.mark.parametrize("draft", [False, True])
def test_machines_of_several_chips_and_replicas_cost_what_works(draft):
    """And what guesses for them: of all numbers by their price, counted by hand; what is reached exactly is reached."""
    sets = [*SETS, *TRIED]
    if draft:
        guessing = {"draft": "gpt2", "draft_on": "l40s", "draft_latency_s": "0.0001", "draft_price": "3"}
        sets += [("serve.speculate", "2"), ("serve.acceptance", "0.5")]
        sets += [(f"serve.{key}", value) for key, value in guessing.items()]
    kinds = [WIDE, {"machine": "h100", "count": 2, "price": 4.5}]
    hourly = [2 * (2 * 1.0 + 3 * draft), 4.5 + 3 * draft]
    asked = prepare_named(fleet(*kinds), "gpt2-medium", "512x64", sets)
    level = parse_level("e2e=10s")
    kept = []
    found = find_capacity(asked, "fleet", level, 1.0, kept=kept)["found"]
    assert len(kept[0].replicas) == found["machines"][0] * 2 + found["machines"][1]
    assert list(found["machines"]) == ([0, 1] if hourly[1] < hourly[0] else [1, 0])
    assert found["value"] == pytest.approx(min(hourly))
    assert found["tried"][-1]["attained"] == 1.0
    with pytest.raises(LoomError, match=r"with none of 5 numbers of machines 99.99% of the requests") as caught:
        find_capacity(asked, "fleet", parse_level("ttft=1us"), 0.9999)
    assert str(caught.value).endswith("with the best of them 0% do")


def test_of_machines_that_cost_as_much_the_fewest_are_taken():
    kinds = [{"machine": "l40s", "count": 2, "price": 1.0}, {"machine": "h100", "count": 1, "price": 2.0}]
    asked = prepare_named(fleet(*kinds), "gpt2-medium", "512x64", [*SETS, *TRIED])
    for slow in ({"machine": "l40s", "count": 2, "price": 0.0}, kinds[0]):
        asked = prepare_named(fleet(slow, kinds[1]), "gpt2-medium", "512x64", [*SETS, *TRIED])
        tried = find_capacity(asked, "fleet", parse_level("e2e=100s"), 0.5)["found"]["tried"]
        assert len(tried) == 1
        assert (tried[0]["groups.0"], tried[0]["groups.1"]) == (1, 0)


def test_numbers_of_machines_that_do_not_serve_are_passed_over(monkeypatch):
    """One of them fails for a reason of its own; where all do, the first reason is told."""
    kinds = [{"machine": "l40s", "count": 1, "price": 1.0}, {"machine": "h100", "count": 1, "price": 2.0}]
    asked = prepare_named(fleet(*kinds), "gpt2-medium", "512x64", [*SETS, *TRIED])
    refusing, usual = {"l40s"}, capacity.serve

    def some(served, *words, **keys):
        if len(served.members) == 1 and served.members[0].served.cluster.name in refusing:
            raise LoomError("too little of it")
        return usual(served, *words, **keys)

    monkeypatch.setattr(capacity, "serve", some)
    assert list(find_capacity(asked, "fleet", parse_level("e2e=10s"), 0.9)["found"]["machines"]) == [0, 1]
    with pytest.raises(LoomError, match=r"1 do not serve \(groups.0.count=1, groups.1.count=0: too little of it\)"):
        find_capacity(asked, "fleet", parse_level("ttft=1us"), 0.9)
    monkeypatch.setattr(capacity, "serve", lambda *_, **__: some(replace(asked, members=asked.members[:1])))
    with pytest.raises(LoomError, match=r"^too little of it$"):
        find_capacity(asked, "fleet", parse_level("e2e=10s"), 0.9)


def test_what_has_no_cheapest_fleet_is_refused():
    level = parse_level("ttft=1s")
    two = [{"machine": "h100", "price": 1}, {"machine": "a100"}]
    for served, why in (
        (prepare_named("dgx-h100", "llama3-8b", "512x64", SETS), "--find fleet: needs machines of several kinds"),
        (prepare_named(fleet(*two), "llama3-8b", "512x64", SETS), r"--find fleet: groups.1 has no price"),
        (
            prepare_named(
                fleet(*({"machine": "h100", "price": 1, "count": 99} for _ in range(2))), "llama3-8b", "512x64", SETS
            ),
            "10,000 numbers of machines are more than 1,024",
        ),
    ):
        with pytest.raises(LoomError, match=why):
            find_capacity(served, "fleet", level, 0.9)
    slow = prepare_named(fleet({"machine": "h100", "price": 1}), "llama3-8b", "512x64", SETS)
    with pytest.raises(LoomError, match="with none of 1 numbers of machines 90% of the requests keep to the limits"):
        find_capacity(slow, "fleet", parse_level("ttft=1us"), 0.9)


@pytest.mark.slow(seconds=2)
def test_a_page_says_which_machines_are_the_cheapest(tmp_path, capsys):
    path, page = tmp_path / "fleet.yaml", tmp_path / "page.html"
    path.write_text(
        "kind: fleet\nname: two\ngroups:\n- {machine: h100, price: 4}\n- {machine: l40s, count: 1, price: 1}\n"
    )
    words = [
        "serve",
        str(path),
        "llama3-8b",
        "64x8",
        "--set",
        "serve.requests=4",
        "--find",
        "fleet",
        "--slo",
        "ttft=10s",
    ]
    assert main([*words, "--report", str(page)]) == 0
    assert "1 $ an hour, 1 x l40s" in " ".join(capsys.readouterr().out.split())
    assert "The cheapest machines" in page.read_text()
    assert "machines of groups.1" in page.read_text()

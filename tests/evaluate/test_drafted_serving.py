"""Guesses that are made on a machine of their own, beside each replica."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.served import ServingResult
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.serving_memory import memory_of
from siliconloom.evaluate.serving_run import _costs, serve
from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.sim.service.costs import EQUAL, GuessedAhead, RequestLengths

GUESS = [("serve.speculate", "3"), ("serve.acceptance", "0.8"), ("serve.draft", "smollm2-135m")]


def apart(machine="l40s", latency="0", *more):
    return [*GUESS, ("serve.draft_on", machine), ("serve.draft_latency_s", latency), *more]


def served(sets, trace="256x64", machine="h100"):
    return prepare_named(machine, "llama3-8b", trace, [("serve.requests", "12"), *sets])


class Counted:
    """Steps of so many milliseconds and joules."""

    def __init__(self, prompt, token):
        self.prompt, self.token = prompt, token

    def kernels(self, chunks, ended, count, contexts, lengths=EQUAL):
        taken = np.full(len(contexts), self.prompt * bool(chunks) + self.token * bool(count) + 100 * ended)
        return taken, 10 * taken, 0.0

    def steps(self, chunks, ended, count, contexts, lengths=EQUAL):
        return self.kernels(chunks, ended, count, contexts, lengths)[:2]


@given(*[st.integers(0, 50)] * 5, st.integers(1, 5), st.booleans(), st.booleans(), st.integers(1, 4), st.integers(0, 2))
def test_guesses_come_first_and_prompts_are_in_both_models_at_once(
    a, b, c, d, latency, places, chunk, token, steps, ended
):
    from siliconloom.evaluate.speculation import ApartCosts

    target, draft = Counted(a, b), Counted(c, d)
    made = ApartCosts(target, [draft] * places, latency)
    at, chunks = np.zeros(1 if chunk else steps), [(7, 0)] * chunk
    ended *= chunk
    seconds, joules = made.steps(chunks, ended, 5 * token, at)
    checked, prompted = a * chunk + b * token + 100 * ended, c * chunk + 100 * ended
    guessed = token * (places * d + 2 * latency)
    assert (seconds == guessed + max(checked, prompted)).all()
    assert (joules == 10 * (checked + prompted + places * d * token)).all()


@given(
    *[st.integers(0, 50)] * 4, st.integers(1, 3), st.integers(1, 5), st.booleans(), st.integers(0, 5), st.integers(0, 5)
)
def test_with_guesses_ahead_only_those_that_were_in_vain_are_made_first(
    a, b, c, d, latency, places, chunk, ready, right
):
    from siliconloom.evaluate.speculation import ApartCosts

    made = ApartCosts(Counted(a, b), [Counted(c, d)] * places, latency, ahead=True)
    lengths = RequestLengths({}, ahead=GuessedAhead(ready, right))
    seconds, joules = made.steps([(7, 0)] * chunk, 0, 5, np.zeros(1), lengths)
    first = (ready < 5) * (places * d + 2 * latency)
    prompt, ahead = c * chunk, (places + 1) * d
    checked = max(a * chunk + b, prompt)
    done = ahead if right else min(ahead, checked + 2 * latency - prompt)
    waited = max(checked, prompt + ahead, (2 * latency + checked + prompt + ahead) / 2 if ready else 0)
    assert seconds[0] == first + (waited if right else checked)
    assert joules[0] == pytest.approx(10 * (a * chunk + b + prompt + done + (ready < 5) * places * d))


def one_block_ahead(blocks, check, guesses, way):
    """Seconds until so many blocks are checked, all right, event by event: sent, checked, heard of."""
    sent, heard, free = [0.0], [0.0], way
    for block in range(blocks):
        free = max(free, sent[block] + way) + check
        heard.append(free + way)
        # while this block is under way the next one is guessed: once the result before it is there
        sent.append(max(sent[block], heard[block]) + guesses)
    return free - way


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 60), st.integers(1, 4))
def test_a_machine_far_away_is_no_more_than_one_block_ahead(check, one, way, places):
    """In a row of checks that are right a step is what events say, whatever the way: it cannot be hidden."""
    from siliconloom.evaluate.speculation import ApartCosts

    made = ApartCosts(Counted(0, check), [Counted(0, one)] * places, way, ahead=True)
    step = made.steps((), 0, 1, np.zeros(1), RequestLengths({}, ahead=GuessedAhead(1, 1)))[0][0]
    guesses = (places + 1) * one
    some, more = (one_block_ahead(blocks, check, guesses, way) for blocks in (100, 300))
    assert step == pytest.approx((more - some) / 200, rel=0.01)


def alone(acceptance, *more):
    """One request after the other."""
    sets = [("serve.requests", "40"), ("serve.max_sequences", "1"), *apart("l40s", "0.001", *more)]
    sets = [(key, acceptance if key == "serve.acceptance" else value) for key, value in sets]
    return prepare_named("h100", "llama3-8b", "64x200", sets)


def test_a_guess_that_never_is_right_takes_no_time_ahead_and_draws_power():
    plain, ahead = serve(alone("0")), serve(alone("0", ("serve.draft_ahead", "true")))
    assert ahead["duration_s"] == pytest.approx(plain["duration_s"])
    assert ahead["energy_j"] > plain["energy_j"]
    assert ahead["ready"] == 0
    assert "ready" not in plain


@pytest.mark.parametrize("acceptance", [0.5, 0.9, 1.0])
def test_as_many_checks_have_their_guesses_ready_as_all_was_right_before(acceptance):
    """A share a^(k+1) of them, but for a request's first and last ones, and they spare what guesses take."""
    plain, ahead = (serve(alone(str(acceptance), *more)) for more in ([], [("serve.draft_ahead", "true")]))
    assert ahead["requests"]["output_tokens"] == plain["requests"]["output_tokens"]
    steps = [each["replicas"][0]["steps"] - 40 for each in (plain, ahead)]  # and a prompt of each request
    assert ahead["ready"] == pytest.approx(acceptance**4, abs=0.06)
    times = ApartTimes(alone(str(acceptance)))
    prompts = plain["duration_s"] - steps[0] * (times.guessed + times.checked)
    share, longer = ahead["ready"], max(4 * times.one - times.checked, 0)
    # where the check before was ready, too, guesses begin when its result is there, a way of 1 ms and back
    in_a_row = max(longer, (0.002 + 4 * times.one - times.checked) / 2)
    spared = share * (times.guessed - (1 - share) * longer - share * in_a_row)
    expected = prompts + steps[1] * (times.guessed + times.checked - spared)
    assert ahead["duration_s"] == pytest.approx(expected, rel=0.02)
    assert ahead["duration_s"] < plain["duration_s"]


def test_the_share_of_a_fleet_is_of_all_its_checks():
    """Of two replicas that share the requests, and not of one of them."""
    sets = [("plan.tensor", "1"), ("plan.data", "2"), ("serve.draft_ahead", "true")]
    made = prepare_named("dgx-h100", "llama3-8b", "64x40", [("serve.requests", "12"), *apart("l40s", "0", *sets)])
    fleet = serve(made)
    alone = serve(prepare_named("h100", "llama3-8b", "64x40", [("serve.requests", "6"), *apart("l40s", "0", sets[2])]))
    checks = sum(each["steps"] for each in fleet["replicas"])
    assert checks > 1.5 * alone["replicas"][0]["steps"]
    assert 0 < fleet["ready"] <= 1
    assert fleet["ready"] == pytest.approx(0.8**4, abs=0.15)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 5))
def test_a_note_says_where_guesses_ahead_outlast_the_check_beside_them(check, one, places):
    from siliconloom.evaluate.speculation import ApartCosts

    for ahead in (False, True):
        made = ApartCosts(Counted(0, check), [Counted(0, one)] * places, 1, ahead=ahead)
        assert (made.slower(9.0) is not None) == (ahead and (places + 1) * one > check)


@pytest.mark.parametrize("machine", ["l40s", "npu-edge"])
def test_that_note_is_of_the_service(machine):
    made = serve(served(apart(machine, "0.00002", ("serve.draft_ahead", "true"), ("serve.requests", "2"))))
    notes = [note for note in made["notes"] if "guesses ahead take" in note]
    assert len(notes) == (machine == "npu-edge")


def test_a_list_of_ones_is_a_chain_ahead_too():
    first, other = (
        serve(served([*apart("l40s", "0.00002", ("serve.draft_ahead", "true")), *sets]))
        for sets in ([], [("serve.speculate", "[1,1,1]"), ("serve.acceptance", "[0.8]")])
    )
    assert (first["duration_s"], first["ready"]) == (other["duration_s"], other["ready"])


def test_nothing_is_guessed_ahead_of_the_last_check(monkeypatch):
    """Nine tokens, all guesses right: the prompt's, four of the first check and four of the last one."""
    from siliconloom.evaluate.speculation import ApartCosts

    seen, steps = [], ApartCosts.steps

    def told(self, chunks, ended, count, contexts, lengths=EQUAL):
        seen.extend([lengths.ahead] if lengths.offsets else [])  # the service's own steps, not one that is asked for
        return steps(self, chunks, ended, count, contexts, lengths)

    monkeypatch.setattr(ApartCosts, "steps", told)
    sets = [("serve.requests", "1"), *apart("l40s", "0", ("serve.draft_ahead", "true")), ("serve.acceptance", "1")]
    serve(prepare_named("h100", "llama3-8b", "64x9", sets))
    assert seen == [GuessedAhead(0, 1), GuessedAhead(1, 0)]


class ApartTimes:
    """Of one request in the middle of its answer: seconds of one guess, of all with the ways, and of a check."""

    def __init__(self, made):
        costs, at = _costs(made)[0], np.array([164.0])
        self.one = float(costs.drafts[0].kernels((), 0, 1, at)[0][0])
        self.guessed = 3 * self.one + 0.002
        self.checked = float(costs.target.steps((), 0, 1, at)[0][0])


def test_a_step_is_what_the_evaluator_says_of_both_machines():
    made = served(apart("l40s", "0.002"))
    costs, at = _costs(made)[0], np.array([300.0])
    options = {"longest": 320}
    check = ReplicaCosts(made.replica, made.model.ask, made.plan, stack=made.stack, guesses=3, **options)
    guess = ReplicaCosts(made.draft.own, made.draft.model.ask, made.plan, **options)
    expected = check.steps((), 0, 4, at)[0][0] + 3 * guess.kernels((), 0, 4, at)[0][0] + 0.004
    assert costs.steps((), 0, 4, at)[0][0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow(seconds=1)
def test_a_like_machine_at_no_distance_takes_the_time_of_the_replicas_own_and_leaves_its_memory_alone():
    beside, own, plain = served(GUESS), served(apart("h100")), served([])
    at = np.array([300.0, 301.0])
    steps = [_costs(each)[0].steps((), 0, 4, at)[0] for each in (beside, own)]
    assert steps[0].tolist() == pytest.approx(steps[1].tolist())
    assert memory_of(own) == memory_of(plain)
    assert memory_of(beside).blocks < memory_of(own).blocks
    assert serve(own)["accepted"] == serve(beside)["accepted"]


@pytest.mark.slow(seconds=1)
def test_what_guesses_draws_and_costs_counts(tmp_path):
    result = serve(served(apart("dgx-a100", "0", ("serve.price", "2"), ("serve.draft_price", "12"))))
    ServingResult.model_validate(result)
    hours = result["duration_s"] / 3600
    assert result["cost"]["chips_usd"] == pytest.approx(hours * (2 + 12))
    assert result["power_w"] > 8 * 70  # eight A100 at work on nothing
    assert result["groups"][0]["draft"] == {"model": "smollm2-135m", "machine": "dgx-a100", "chips": 1}
    assert any("7 of the 8 chips" in note for note in result["notes"])
    several = [("plan.tensor", "1"), ("plan.data", "3"), ("serve.price", "2"), ("serve.draft_price", "12")]
    many = serve(served(apart("l40s", "0", *several), machine="dgx-h100"))
    assert many["cost"]["chips_usd"] == pytest.approx(3 * many["duration_s"] / 3600 * (2 + 12))
    coming = [*several, ("serve.replicas_least", "1"), ("serve.scale_at", "300"), ("serve.start_s", "0.01")]
    some = serve(served(apart("l40s", "0", *coming), machine="dgx-h100"))
    assert some["cost"]["chips_usd"] == pytest.approx(some["cost"]["chip_hours"] * (2 + 12))
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "kind: fleet\nname: two\ngroups: [{machine: h100, count: 2, price: 5}, {machine: a100, price: 3}]\n"
    )
    fleet = serve(served(apart("l40s", "0", ("serve.draft_price", "12")), machine=str(file)))
    hours = fleet["duration_s"] / 3600
    assert fleet["cost"]["chips_usd"] == pytest.approx(hours * (2 * 5 + 3 + 3 * 12))
    unpriced = serve(served(apart("l40s", "0", ("serve.price", "2"))))
    assert unpriced["cost"]["chips_usd"] is None
    assert any("serve.draft_price" in note for note in unpriced["notes"])


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=8)
@given(st.floats(0, 0.2), st.floats(0.001, 0.2))
def test_a_longer_way_never_ends_sooner(near, more):
    ends = [serve(served(apart("l40s", f"{way:.9f}"), "128x16"))["duration_s"] for way in (near, near + more)]
    assert ends[0] < ends[1]


def test_the_draft_models_memory_limits_what_requests_take():
    small = [("serve.draft", "llama3-8b"), ("serve.draft_on", "a10"), ("serve.draft_latency_s", "0")]
    made = served([*GUESS[:2], *small])
    room = memory_of(made).blocks * 16 * 131072
    assert room <= 0.9 * 24e9 - 2 * 8.03e9
    assert room > 0.9 * 24e9 - 2 * 8.03e9 - 2e8
    with pytest.raises(LoomError, match=r"a10, which guesses \(serve\.draft_on\), has room for"):
        memory_of(served([*GUESS[:2], *small, ("serve.cache_tokens", "300000")]))
    with pytest.raises(LoomError, match=r"serve\.draft_on a10: llama3-70b leaves no room"):
        memory_of(served([*GUESS[:2], ("serve.draft", "llama3-70b"), *small[1:]]))


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        ([("serve.draft_on", "l40s")], "draft_on: changes nothing without serve.draft"),
        ([*GUESS, ("serve.draft_on", "l40s")], "needs serve.draft_latency_s"),
        ([*GUESS, ("serve.draft_latency_s", "1")], "changes nothing without serve.draft_on"),
        ([*GUESS, ("serve.draft_price", "1")], "changes nothing without serve.draft_on"),
        ([*GUESS, ("serve.draft_tensor", "2")], "serve.draft_tensor 2: a replica has 1 chip$"),
        ([*GUESS, ("serve.draft_ahead", "true")], "needs a machine that has nothing else to do"),
        (
            [
                *apart("l40s", "0", ("serve.draft_ahead", "true")),
                ("serve.speculate", "[2,1]"),
                ("serve.acceptance", "[0.5,0.3]"),
            ],
            "draft_ahead: is of chains of guesses",
        ),
        (apart("h101"), "serve.draft_on: h101: no such file"),
        (apart("pim-hbm"), "serve.draft_on pim-hbm: guesses are made by GPUs and NPUs"),
        (apart("neupims"), "serve.draft_on neupims: guesses are made by GPUs and NPUs"),
        (apart("systolic-ws-8"), "serve.draft_on systolic-ws-8: guesses are made by GPUs and NPUs"),
        (apart("dgx-a100", "0", ("serve.draft_tensor", "9")), "serve.draft_tensor 9: dgx-a100 has 8 chips"),
        (apart("dgx-a100", "0", ("serve.draft_tensor", "2")), "serve.draft_tensor 2 on dgx-a100: .*9 heads"),
        (apart("l40s", "0", ("serve.preemption", "swap"), ("serve.host_bandwidth", "1GB/s")), "is not of"),
        (apart("l40s", "0", ("serve.power_limit", "300"), ("serve.capped_clock", "0.5")), "is not of"),
        (apart("l40s", "-1"), "draft_latency_s"),
        (apart("v100"), "serve.draft_on v100: has no units for bf16, the format of smollm2-135m"),
        (apart("tpu-v3"), "serve.draft smollm2-135m on tpu-v3: "),
        ([*GUESS[:2], ("serve.draft", "resnet50")], "serve.draft resnet50: "),
        ([*GUESS[:2], ("serve.draft", "mamba-2.8b")], "serve.draft: serving mamba-2.8b"),
        ([*GUESS[:2], ("serve.draft", "llama9")], "serve.draft llama9: llama9: no such file"),
    ],
)
def test_what_cannot_guess_there_is_told(sets, told):
    with pytest.raises((LoomError, NotSupported), match=told):
        served(sets)


def test_a_draft_model_that_is_too_short_is_named():
    sets = [*GUESS[:2], ("serve.draft", "gpt2")]
    with pytest.raises(LoomError, match=r"serve\.draft gpt2: .*1024 tokens only"):
        serve(served(sets, "1200x8"))


def test_a_price_of_guesses_alone_is_refused():
    with pytest.raises(LoomError, match=r"serve\.draft_price 3: changes nothing without serve\.price"):
        serve(served(apart("l40s", "0", ("serve.draft_price", "3"))))

"""Published results: what is compared, and that the mechanisms are the publications'."""

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch.gpu import load_gpu
from siliconloom.cli import main
from siliconloom.reproduce import CARDS, run, workers
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.reproduce.fusemax import fusemax_stalled
from siliconloom.reproduce.fusemax_events import block_ends, fusemax_event_latency
from siliconloom.reproduce.fusemax_model import BANDWIDTH, cascade, flat, fusemax, tiles, unfused
from siliconloom.reproduce.fusemax_tables import LENGTHS, MODELS, Model, flat_mapping
from siliconloom.reproduce.instinfer import step_seconds
from siliconloom.reproduce.sn40l import fusion_ratio, switch_seconds
from siliconloom.workloads import load_workload

KEYS = {"name", "ours", "published", "error", "tolerance", "within", "cause", "expected", "verdict"}


LONG = {"neupims": 16, "neupims-simulator": 16, "sn40l": 16, "distserve": 6, "apex": 6, "nanoflow": 5, "flux-comet": 3}
"""Cards that take so many seconds."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow(seconds=LONG[n])] if n in LONG else []) for n in sorted(CARDS)]
)
def test_every_card_holds_and_says_why_where_it_does_not_match(name, capsys):
    assert main(["reproduce", name, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["schema"], set(result)) == (
        "siliconloom.reproduction/1",
        {"schema", "version", "interrupted", "cards"},
    )
    (card,) = result["cards"]
    assert set(card) == {"card", "title", "source", "rows", "holds", "wall_s"}
    assert (card["card"], card["holds"]) == (name, True)
    assert all(set(row) == KEYS for row in card["rows"])
    assert len({row["name"] for row in card["rows"]}) == len(card["rows"])
    assert all(row["within"] or row["cause"] for row in card["rows"])
    pinned = {row.name for row in run.load_card(name).rows if row.pinned}
    assert pinned == {row for of, row in run.expected_errors() if of == name}  # none is missing, none is stale
    assert name == name.lower()


@pytest.mark.slow(seconds=1)
def test_every_row_of_the_artifact_is_within_a_thousandth():
    for name, count in (("fusemax", 168), ("flat", 120)):
        rows = [row for row in run.load_card(name).rows if row.tolerance == 1e-3]
        assert len(rows) == count
        assert all(row.within and not row.cause for row in rows)


QUICK = ["zero", "genz", "flat", "ulysses"]


@pytest.mark.slow(seconds=1)
def test_cards_on_several_cores_are_the_same_in_the_order_asked_for(monkeypatch):
    def told(cards):
        return [{key: value for key, value in card.items() if key != "wall_s"} for card in cards["cards"]]

    monkeypatch.setattr(run, "cores", lambda: 3)
    beside = run.reproduce(QUICK)
    monkeypatch.setattr(run, "cores", lambda: 1)
    assert told(beside) == told(run.reproduce(QUICK))
    assert [card["card"] for card in beside["cards"]] == QUICK


@pytest.mark.slow(seconds=1.5)
def test_short_cards_are_shown_while_a_long_one_is_derived(monkeypatch):
    """The longest card begins at once and ends last; what is interrupted before has everything else."""
    serve = (
        "import sys, time\nfrom siliconloom.reproduce import run\n"
        "run.card_result = lambda name: time.sleep(2.0 * (name == run.LONG[0])) or {'card': name}\nrun.serve()"
    )
    monkeypatch.setattr(run, "cores", lambda: 2)
    monkeypatch.setattr(workers, "SERVE", serve)
    shown = [card["card"] for card in run.derive(sorted(CARDS))]
    assert sorted(shown) == sorted(CARDS)
    assert shown[-1] == run.LONG[0]
    assert set(shown[: -len(run.LONG)]).isdisjoint(run.LONG)
    assert shown[-len(run.LONG) : -1] == list(reversed(run.LONG[1:]))
    assert run.shortest_first(["zero", "neupims", "genz", "sn40l"]) == ["zero", "genz", "sn40l", "neupims"]


def test_a_card_whose_process_fails_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(run, "cores", lambda: 2)
    monkeypatch.setattr(workers, "SERVE", "import sys; sys.stdin.readline(); sys.exit(3)")
    assert main(["reproduce", "zero", "genz"]) == 2
    assert "its process ended with status 3 before the card was derived" in capsys.readouterr().err


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("several", [1, 2])
def test_what_is_done_is_kept_when_interrupted(monkeypatch, capsys, tmp_path, several):
    """The first card is printed and written although the next one never ends."""
    serve = (
        "import sys, time\nfrom siliconloom.reproduce import run\nderived = run.card_result\n"
        "run.card_result = lambda name: derived(name) if name == 'zero' else time.sleep(1000)\nrun.serve()"
    )
    monkeypatch.setattr(run, "cores", lambda: several)
    monkeypatch.setattr(workers, "SERVE", serve)
    derived = run.card_result

    def interrupted(name):
        if name == "zero":
            return derived(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "card_result", interrupted)
    if several > 1:
        taken = workers._taken

        def once(worker, busy):
            signal.setitimer(signal.ITIMER_REAL, 0.1)  # while it waits for the second
            return taken(worker, busy)

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(workers, "_taken", once)
        before = signal.signal(signal.SIGALRM, interrupt)
    try:
        assert main(["reproduce", "zero", "genz", "--json", str(tmp_path / "x.json")]) == 130
    finally:
        if several > 1:
            signal.signal(signal.SIGALRM, before)
    captured = capsys.readouterr()
    assert "ZeRO" in captured.out
    assert captured.err == "loom: interrupted; nothing was left half written\n"
    result = json.loads((tmp_path / "x.json").read_text())
    assert (result["interrupted"], [card["card"] for card in result["cards"]]) == (True, ["zero"])


def test_an_interrupt_before_any_card_is_told(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "cores", lambda: 1)
    monkeypatch.setattr(run, "card_result", interrupted)
    assert main(["reproduce", "zero", "genz"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "interrupted before the first of 2 cards was derived: nothing to show\n"
    assert captured.err == "loom: interrupted; nothing was left half written\n"


def test_tables_fit_a_terminal(capsys):
    assert main(["reproduce", "flat"]) == 0
    out = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    assert "132 of 132 rows inside their tolerance" in out


def made(*rows):
    return {"made": Card("made", "made for a test", "nowhere", rows)}


CAUSE = "the paper counts something else"


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (CardRow("x", 1.04, 1.0, 0.05), "inside"),
        (CardRow("x", 1.06, 1.0, 0.05), "outside"),
        (CardRow("x", 1.06, 1.0, 0.05, CAUSE), "moved"),  # a cause alone holds nothing: how far off must be known
        (CardRow("x", 1.06, 1.0, 0.05, CAUSE, expected=0.06), "explained"),
        (CardRow("x", 1.06, 1.0, 0.05, CAUSE, expected=0.09), "moved"),
        (CardRow("x", 1.04, 1.0, 0.05, CAUSE, expected=0.09), "inside"),
        (CardRow("x", None, 1.0, 0.05), "outside"),
        (CardRow("x", None, 1.0, 0.05, CAUSE), "not modelled"),
        (CardRow("x", 3.0, 1.0, 0.0, sense="at least"), "moved"),  # so far on the right side that it could not fail
        (CardRow("x", 3.0, 1.0, 0.0, sense="at least", expected=2.0), "bound"),
        (CardRow("x", 0.9, 1.0, 0.0, sense="at least"), "outside"),
        (CardRow("x", 0.9, 1.0, 0.0, sense="at most", expected=-0.1), "bound"),
        (CardRow("x", 1.1, 1.0, 0.0, sense="at most"), "outside"),
    ],
)
def test_a_deviation_needs_a_cause_and_its_size(monkeypatch, capsys, row, verdict):
    monkeypatch.setattr(run, "load_card", lambda name: made(row)[name])
    monkeypatch.setattr(run, "CARDS", {"made": "x"})
    assert row.verdict == verdict
    fails = verdict in ("outside", "moved")
    assert main(["reproduce"]) == fails
    captured = capsys.readouterr()
    assert ("made: x" in captured.err) == fails
    if verdict == "bound":
        assert "1 bounds respected" in captured.out


@given(
    published=st.floats(1e-3, 1e6),
    error=st.floats(-0.9, 20),
    factor=st.sampled_from([0.01, 0.5, 0.9, 0.97, 1.03, 1.1, 2, 100]),
    sense=st.sampled_from(["equal", "at least", "at most"]),
)
def test_every_row_with_a_figure_fails_when_the_figure_moves_far(published, error, factor, sense):
    tolerance = 0.02
    row = CardRow("x", published * (1 + error), published, tolerance, CAUSE, sense)
    row = replace(row, expected=row.error if row.pinned else None)
    assert row.holds
    moved = replace(row, ours=row.ours * factor)
    # the one way out: a row that was explained becomes right
    assert not moved.holds or (sense == "equal" and moved.within)


def test_a_model_that_is_broken_on_purpose_fails_its_card(monkeypatch):
    """FlashAttention-2's backward pass a hundred times slower: rows with a cause fail as well."""
    from siliconloom.baselines import mechanism

    whole = run.load_card("flash-attention-2")
    assert whole.holds
    real = mechanism.backward_times

    def slow(*args):
        seconds, bound = real(*args)
        return 100 * seconds, bound

    monkeypatch.setattr(mechanism, "backward_times", slow)
    broken = run.load_card("flash-attention-2")
    assert not any(row.holds for row in broken.rows)


def test_latencies_that_pointer_chases_found_stand_in_the_descriptions():
    """Cycles of Luo et al., 2024: inputs of the GPU model, not results."""
    h100, a100 = load_gpu("h100"), load_gpu("a100")
    first = h100.first_level
    assert (first.latency_cycles, first.shared_latency_cycles, first.remote_latency_cycles) == (32, 29, 181)
    assert h100.l2.latency_cycles == 264
    assert 472 <= h100.l2.far_latency_cycles <= 493
    assert 600 <= h100.memory.latency_cycles <= 620
    found = a100.first_level.latency_cycles, a100.l2.latency_cycles, a100.l2.far_latency_cycles
    assert (*found, a100.memory.latency_cycles) == (33, 203, 415, 556)


SHAPES = st.builds(
    Model, st.just("any"), st.just(1024), st.sampled_from([32, 64, 128, 256]), st.integers(1, 32), st.just(4096)
)


@pytest.mark.slow(seconds=1)
@given(model=SHAPES, length=st.sampled_from(sorted(LENGTHS.values())))
def test_attention_is_never_faster_than_its_arrays_and_its_memory(model, length):
    """Floors that hold whatever the binding: products on the 2D array, unique bytes over the bandwidth."""
    unique = 4 * 64 * model.heads * length * model.head_dim * 2
    floor = 2 * model.head_dim * tiles(model, length) / 940e6
    for dataflow in (fusemax, fusemax_stalled, cascade, unfused):
        made = dataflow(model, length)
        assert made.latency >= floor * (1 - 1e-12)
        assert made.latency >= made.traffic / BANDWIDTH * (1 - 1e-12) or dataflow is unfused
        assert made.traffic >= unique
        assert 0 < made.util_2d <= 1 + 1e-12
        assert 0 < made.util_1d <= 1 + 1e-12
    assert fusemax(model, length).latency <= fusemax_stalled(model, length).latency
    assert fusemax(model, length).latency < unfused(model, length).latency


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_flat_keeps_its_scores_on_chip_until_a_tile_of_rows_no_longer_fits(model):
    for name, length in LENGTHS.items():
        kept = flat_mapping(model.head_dim, length).scores
        assert kept == (length <= LENGTHS["64K"])
        made = flat(model, length)
        bound = made.latency == pytest.approx(made.traffic / BANDWIDTH)
        assert bound == (not kept), name


@given(head_dim=st.sampled_from([32, 64, 128]), count=st.integers(1, 40), blocks=st.integers(1, 4))
def test_events_take_no_less_than_either_array_and_no_more_than_both_in_turn(head_dim, count, blocks):
    ends = block_ends(head_dim, count, blocks)
    assert len(ends) == blocks
    assert ends == sorted(ends)
    grid, lanes = (2 * head_dim + 9) * count * blocks, ((2 * head_dim + 10) * count + head_dim) * blocks
    assert max(grid, lanes) <= ends[-1] <= grid + lanes


def test_events_and_closed_form_agree_for_head_widths_that_no_table_has():
    for head_dim in (32, 96, 128):
        model = replace(MODELS[0], head_dim=head_dim)
        for length in (4096, 65536):
            assert fusemax_event_latency(model, length) == pytest.approx(fusemax(model, length).latency, rel=0.05)


def test_a_switch_takes_as_long_as_its_bytes_at_the_nodes_copy_rate():
    size = load_workload("llama2-7b").weight_bytes
    assert size / 1e12 < switch_seconds(size) < 1.01 * size / 1e12


def test_fusion_helps_most_where_scores_go_through_memory():
    short = fusion_ratio(load_workload("llama2-7b", [("sequence", "256"), ("precision", "bf16")]))
    long = fusion_ratio(load_workload("llama2-7b", [("sequence", "4096"), ("precision", "bf16")]))
    decode = fusion_ratio(load_workload("llama2-7b", [("phase", "decode"), ("precision", "bf16")]))
    assert 1 <= decode < short < long


def test_attention_in_the_drive_pays_more_the_longer_the_context():
    gains = [outside / inside for outside, inside in (step_seconds(16, context) for context in (512, 1024, 2048))]
    assert gains == sorted(gains)
    assert 1 < gains[-1] < 11.2 / 3.94

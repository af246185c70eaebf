"""The command sequencer of a PIM channel: every log keeps JEDEC's rules, and a log that does not is found out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.arch.pim import Command, Macro, MacroKind
from siliconloom.rtl.bench.pim_rules import broken_rules
from siliconloom.sim.pim import channel as pim
from siliconloom.sim.pim import kernel
from siliconloom.sim.pim.channel import run_channel
from siliconloom.sim.pim.state import ChannelOutcome, ChannelWork, fresh_state
from siliconloom.verification.pim_cases import random_case
from tests.sim.pim_rules import broken_log
from tests.sim.pim_tiles import random_pim

HBM = load_chip("pim-hbm").tile


def logged(tile, macros):
    run = run_channel(tile, macros, log=True)
    return run, [tuple(entry[:5]) for entry in run.commands.tolist()]


@pytest.mark.slow(seconds=1)
@given(tile=st.integers(0, 10**6), work=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_every_command_keeps_the_rules_on_random_tiles(tile, work):
    chip = random_pim(tile)
    macros = random_case(chip.tile, work, transfers=work % 20).macros
    assert broken_log(chip.tile, macros, run_channel(chip.tile, macros, log=True)) == []


@given(work=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_compiled_and_plain_python_agree(work):
    chip = random_pim(work)
    macros = random_case(chip.tile, work).macros
    run = run_channel(chip.tile, macros, log=True)
    table, timing = pim.macro_table(macros), pim.timing_of(chip.tile)
    times, counts = np.full((4, len(table)), -1, np.int64), np.zeros(len(Command), np.int64)
    commands = np.zeros((len(run.commands), 6), np.int64)
    work = ChannelWork(table, np.flatnonzero(table[:, 0] <= 1), np.flatnonzero(table[:, 0] > 1))
    kernel.run.py_func(timing, work, fresh_state(timing), ChannelOutcome(times, counts, commands))
    assert (commands == run.commands).all()
    assert (times[3] == run.done).all()


def test_a_gemv_takes_what_its_timing_says():
    """GWRITE of 4 bursts, then one round of 4 bursts in 16 banks, groups of 4, one after the other."""
    t = HBM.dram.timing
    macros = [Macro(kind=MacroKind.GWRITE, columns=4), Macro(kind=MacroKind.GEMV, columns=4)]
    run, log = logged(HBM, macros)
    assert [c[0] for c in log[:4]] == [1, 3, 5, 7], "taken in cycle 0, a burst every two cycles"
    activations = [c[0] for c in log if c[1] == Command.PIM_ACT]
    assert activations[0] == 9, "taken in cycle 8"
    assert np.diff(activations).tolist() == [t.tFAW] * 3, "four banks in every window"
    dots = [c[0] for c in log if c[1] == Command.PIM_DOT]
    assert dots[0] == activations[-1] + t.tRCD
    assert np.diff(dots).tolist() == [t.tCCD_L] * 3
    (closing,) = (c[0] for c in log if c[1] == Command.PIM_PRE)
    assert closing == max(dots[-1] + t.tRTP, activations[-1] + t.tRAS)
    reads = [c[0] for c in log if c[1] == Command.PIM_READ]
    assert reads == [max(closing + 1, dots[-1] + HBM.dot_latency), reads[0] + t.tCCD_L]
    assert run.cycles == reads[-1] + t.CL + HBM.dram.burst_cycles


def test_dual_row_buffers_let_transfers_pass_computation_and_blocked_banks_do_not():
    blocked = HBM.model_copy(update={"dual_row_buffer": False})
    macros = [Macro(kind=MacroKind.GWRITE, columns=32), Macro(kind=MacroKind.GEMV, columns=32, rounds=4)]
    macros += [Macro(kind=MacroKind.READ, bank=b % 16, row=100, columns=32) for b in range(8)]
    together = run_channel(HBM, macros).cycles
    alone = run_channel(HBM, macros[:2]).cycles
    apart = run_channel(blocked, macros).cycles
    moves = run_channel(HBM, macros[2:]).cycles
    assert max(alone, moves) <= together < 0.9 * (alone + moves), "they share tFAW, command bus and data bus"
    assert apart > alone + moves - 100


def test_a_younger_transfer_does_not_open_its_row_while_an_older_one_waits_for_refresh():
    """The older transfer's bank rests when refresh falls due; an open row of the younger one would hold up both."""
    for shift in range(120):
        start = HBM.dram.timing.tREFI - shift
        macros = [
            Macro(kind=MacroKind.READ, bank=0, row=1, arrival=start),
            Macro(kind=MacroKind.READ, bank=2, row=1, arrival=start),
            Macro(kind=MacroKind.READ, bank=1, row=1, arrival=start),
        ]
        run = run_channel(HBM, macros, log=True)
        assert broken_log(HBM, macros, run) == []


def test_ranks_refreshed_in_turn_stop_computation_twice_and_let_the_other_rank_go_on():
    changes = [("tile.dram.organization.ranks", "2"), ("tile.dram.organization.rows", "16384")]
    together = load_chip("pim-hbm", changes).tile
    in_turn = load_chip("pim-hbm", [*changes, ("tile.refresh_ranks", "in_turn")]).tile
    t = together.dram.timing
    work = [Macro(kind=MacroKind.GWRITE, columns=4), Macro(kind=MacroKind.GEMV, columns=4, rounds=200)]
    once, twice = (run_channel(tile, work, log=True) for tile in (together, in_turn))
    due = [c[0] for c in twice.commands if c[1] == Command.REF]
    assert [c[2] for c in twice.commands if c[1] == Command.REF][:4] == [0, 1, 0, 1]
    assert all(abs(at - (n + 1) * t.tREFI / 2) < 2 * t.tFAW * 8 for n, at in enumerate(due))
    assert twice.counts[Command.REF] >= 2 * once.counts[Command.REF]
    assert twice.cycles > once.cycles + (once.counts[Command.REF] - 1) * t.tRFC
    # rank 1 reads on while rank 0 is refreshed, half a tREFI after the start
    reads = [Macro(kind=MacroKind.READ, bank=16 + n % 16, row=n, arrival=t.tREFI // 2) for n in range(8)]
    assert run_channel(in_turn, reads).cycles < t.tREFI // 2 + t.tRFC
    late = [Macro(kind=MacroKind.READ, bank=16 + n % 16, row=n, arrival=t.tREFI) for n in range(8)]
    assert run_channel(together, late).cycles > t.tREFI + t.tRFC


def _moved(log, number, cycle):
    made = list(log)
    made[number] = (cycle, *made[number][1:])
    return sorted(made)


@pytest.mark.slow(seconds=3)
def test_a_command_that_goes_out_early_is_found_out():
    """Each command is moved to an earlier cycle, as far as the one before it allows: what forbids that has a name."""
    names = set()
    for seed in range(40):
        tile = random_pim(seed).tile
        _, log = logged(tile, random_case(tile, seed).macros)
        for number in range(1, len(log)):
            for cycle in range(log[number - 1][0] + 1, log[number][0]):
                for rule in broken_rules(tile, _moved(log, number, cycle)):
                    names.add(rule.split(": ")[1])
                break
    expected = {
        "tRC",
        "tRP",
        "tRRD",
        "tFAW",
        "tRFC",
        "tRAS",
        "tRTP",
        "tWR",
        "tRCD",
        "tRCD of PIM_DOT",
        "tCCD",
        "tWTR",
        "tRP before REF",
        "REF before it is due",
        "results that are not summed yet",
        "PIM_DOT on a vector that has not arrived",
    }
    assert expected <= names, expected - names


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda log: [c for c in log if c[1] != Command.PIM_ACT], "PIM_DOT on row"),
        (lambda log: [c for c in log if c[1] != Command.ACT], "on closed bank"),
        (lambda log: [c for c in log if c[1] != Command.PRE], "activation of open bank"),
        (lambda log: [(c[0], c[1], c[2], c[3] + (c[1] == Command.PIM_DOT), c[4]) for c in log], "PIM_DOT on row"),
        (lambda log: [c for c in log if c[1] != Command.REF], "refreshes are due"),
        (lambda log: [*log[:5], log[4], *log[5:]], "a second command"),
    ],
)
def test_a_broken_log_is_found_out(change, told):
    macros = [Macro(kind=MacroKind.GWRITE, columns=4), Macro(kind=MacroKind.GEMV, columns=4, rounds=30)]
    macros += [Macro(kind=MacroKind.READ, bank=2, row=200 + n, columns=4) for n in range(100)]
    _, log = logged(HBM, macros)
    assert broken_rules(HBM, log) == []
    assert any(told in rule for rule in broken_rules(HBM, change(log)))


def test_a_macro_that_does_not_fit_is_refused_with_its_field():
    for macro, told in (
        (Macro(kind=MacroKind.READ, bank=16), "read: bank must be in 0..15"),
        (Macro(kind=MacroKind.GWRITE, columns=65), "gwrite: columns must be in 1..64"),
        (Macro(kind=MacroKind.GEMV, columns=8, segments=5), "gemv: segments must be in 1..4"),
        (Macro(kind=MacroKind.GEMV, chunks=2, segments=2), "gemv: segments must be in 1..1"),
        (Macro(kind=MacroKind.GEMV, row=32767, rounds=2), "gemv: row must be in 0..32766"),
    ):
        with pytest.raises(LoomError, match=told):
            run_channel(HBM, [macro])


def test_per_bank_refresh_is_not_built():
    banked = load_chip("pim-hbm", [("tile.dram.controller.refresh", "bank")]).tile
    with pytest.raises(NotSupported, match="per-bank refresh"):
        run_channel(banked, [structs.replace(Macro(kind=MacroKind.READ))])


@pytest.mark.parametrize(
    "name",
    [
        "CL",
        "CWL",
        "tRCD",
        "tRP",
        "tRAS",
        "tRC",
        "tRRD_L",
        "tFAW",
        "tCCD_L",
        "tWR",
        "tWTR_L",
        "tRTP",
        "tRTRS",
        "tRFC",
        "tREFI",
    ],
)
def test_every_timing_shows_in_the_commands(name):
    """One cycle more in the description moves a command of some random case, so parity on such cases proves it."""
    for seed in range(60):
        tile = random_pim(seed, **{"dram.controller.refresh": "rank"}).tile
        timing = tile.dram.timing
        longer = timing.model_copy(update={name: (timing.row_cycle if name == "tRC" else getattr(timing, name)) + 1})
        other = tile.model_copy(update={"dram": tile.dram.model_copy(update={"timing": longer})})
        macros = random_case(tile, seed, transfers=8).macros
        if logged(tile, macros)[1] != logged(other, macros)[1]:
            return
    pytest.fail(f"{name} never shows")

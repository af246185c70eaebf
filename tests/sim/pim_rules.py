"""What must hold for every command log of a PIM channel, beside JEDEC's rules (`rtl.bench.pim_rules`).

The rules count what each macro asked for, and look at when refresh went out; nothing here is shared with
`sim.pim.channel`.
"""

from collections import Counter, defaultdict

from siliconloom.arch.pim import RESULT_BYTES, Command, MacroKind
from siliconloom.rtl.bench.pim_rules import broken_rules


def asked(tile, macro):
    """How many commands of each kind a macro needs."""
    burst = tile.dram.organization.request_bytes
    if macro.kind == MacroKind.GWRITE:
        return Counter({Command.PIM_WRITE: macro.columns})
    if macro.kind != MacroKind.GEMV:
        moves = Command.RD if macro.kind == MacroKind.READ else Command.WR
        return Counter({Command.ACT: 1, moves: macro.columns, Command.PRE: 1})
    rows = macro.rounds * macro.chunks
    last = macro.last_columns or macro.columns
    dots = macro.rounds * macro.segments * ((macro.chunks - 1) * macro.columns + last)
    return Counter(
        {
            Command.PIM_ACT: rows * (tile.banks // tile.activate_group),
            Command.PIM_PRE: rows,
            Command.PIM_DOT: dots * (1 if tile.commands == "all_bank" else tile.banks),
            Command.PIM_READ: macro.rounds * -(-macro.segments * tile.banks * RESULT_BYTES // burst),
        }
    )


def late_refreshes(tile, commands):
    """Refreshes that did not go out in the first cycle in which they could."""
    t, ranks = tile.dram.timing, tile.banks // tile.refreshed_banks
    closed, refreshed, count, found, bus = [0] * ranks, [0] * ranks, [0] * ranks, [], -1
    for cycle, code, place, *_ in commands:
        if code == Command.PRE:
            closed[place // tile.refreshed_banks] = cycle + t.tRP
        elif code == Command.PIM_PRE:
            closed = [cycle + t.tRP] * ranks
        elif code == Command.REF:
            due = count[place] * t.tREFI + (place + 1) * t.tREFI // ranks
            count[place] += 1
            first = max(due, closed[place], refreshed[place])
            # the command bus may be taken by the command before, if that came when this one could not go out yet
            if cycle > max(first, bus + 1 if bus == first else first):
                found.append(f"cycle {cycle}: refresh {count[place]} of rank {place} could have gone out at {first}")
            refreshed[place] = cycle + t.tRFC
        bus = cycle
    return found


def broken_log(tile, macros, run):
    """Every violation in what the model says of ``macros``, as text."""
    log = run.commands.tolist()
    commands = [tuple(entry[:5]) for entry in log]
    found = broken_rules(tile, commands) + late_refreshes(tile, commands)
    counts = defaultdict(Counter)
    for _, code, _, _, _, macro in log:
        if code != Command.REF:
            counts[macro][code] += 1
    for number, macro in enumerate(macros):
        if counts[number] != asked(tile, macro):
            found.append(f"macro {number}: {dict(counts[number])} went out, {dict(asked(tile, macro))} were needed")
        if run.taken[number] < macro.arrival or run.first[number] <= run.taken[number]:
            found.append(f"macro {number}: taken at {run.taken[number]}, offered from {macro.arrival} on")
    if not tile.dual_row_buffer:
        spans = sorted(zip(run.taken.tolist(), run.last.tolist(), [m.computes for m in macros], strict=True))
        for number, a in enumerate(spans):
            found += [
                f"computation and transfer under way together: {a} and {b}"
                for b in spans[number + 1 :]
                if b[0] <= a[1] and (a[2] or b[2])
            ]
    if tile.dram.controller.refresh != "none":
        ranks = tile.banks // tile.refreshed_banks
        owed = int(run.commands[-1, 0]) * ranks // tile.dram.timing.tREFI - int(run.counts[Command.REF])
        if owed > ranks:
            found.append(f"{owed} refreshes are owed at the end")
    return found

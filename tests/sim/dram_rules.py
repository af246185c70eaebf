"""JEDEC's constraints as a list of rules, checked over a command log: it shares no code with the replay."""

from collections import defaultdict

from siliconloom.sim.dram.replay import COMMANDS

READS, WRITES = ("RD", "RDA"), ("WR", "WRA")


def broken_rules(dram, commands):
    """Every violation, as text."""
    t, burst, org = dram.timing, dram.burst_cycles, dram.organization
    per_bank = dram.controller.refresh == "bank"
    refresh = (t.tRFCpb or t.tRFC) if per_bank else t.tRFC
    open_row = {}
    last = defaultdict(lambda: -(10**9))  # (command, scope...) -> cycle
    activations, bursts, found = defaultdict(list), [], []
    buses = defaultdict(list)

    def need(now, since, cycles, rule):
        if now - since < cycles:
            found.append(f"cycle {now}: {rule}: {now - since} < {cycles}")

    for now, ch, number, rank, group, bank, row, _ in commands.tolist():
        name = COMMANDS[number]
        b, g, r = (ch, rank, group, bank), (ch, rank, group), (ch, rank)
        column = name in READS + WRITES
        buses[ch, column if dram.controller.two_commands else 0].append(now)
        if name == "ACT":
            if b in open_row:
                found.append(f"cycle {now}: ACT on an open bank")
            open_row[b] = row
            need(now, last["ACT", b], t.row_cycle, "tRC")
            need(now, last["PRE", b], t.tRP, "tRP")
            need(now, last["ACT", g], t.tRRD_L, "tRRD_L")
            need(now, last["ACT", r], t.tRRD_S, "tRRD_S")
            need(now, last["REF", b if per_bank else r], refresh, "tRFC")
            activations[r].append(now)
            if len(activations[r]) > 4:
                need(now, activations[r][-5], t.tFAW, "tFAW")
            for scope in (b, g, r):
                last["ACT", scope] = now
        elif name == "PRE":
            if b not in open_row:
                found.append(f"cycle {now}: PRE on a closed bank")
            open_row.pop(b, None)
            need(now, last["ACT", b], t.tRAS, "tRAS")
            need(now, last["RD", b], t.tRTP, "tRTP")
            need(now, last["WR", b], t.CWL + burst + t.tWR, "tWR")
            last["PRE", b] = now
        elif name == "REF":
            banks = [bank] if per_bank else range(org.banks)
            groups = [group] if per_bank else range(org.bank_groups)
            for each in [(ch, rank, x, y) for x in groups for y in banks]:
                if each in open_row:
                    found.append(f"cycle {now}: REF with an open bank")
                need(now, last["PRE", each], t.tRP, "tRP before REF")
            need(now, last["REF", b if per_bank else r], refresh, "tRFC between REF")
            last["REF", b if per_bank else r] = now
        else:
            if open_row.get(b) != row:
                found.append(f"cycle {now}: {name} on row {row}, open is {open_row.get(b)}")
            kind = "RD" if name in READS else "WR"
            need(now, last["ACT", b], t.tRCD, "tRCD")
            need(now, last[kind, g], t.tCCD_L, f"tCCD_L {kind}")
            need(now, last[kind, r], t.tCCD_S, f"tCCD_S {kind}")
            if kind == "RD":
                need(now, last["WR", g], t.CWL + burst + t.tWTR_L, "tWTR_L")
                need(now, last["WR", r], t.CWL + burst + t.tWTR_S, "tWTR_S")
            start = now + (t.CL if kind == "RD" else t.CWL)
            bursts.append((ch, start, start + burst, r))
            for scope in (b, g, r):
                last[kind, scope] = now
            if name.endswith("A"):
                open_row.pop(b)
                held = t.tRTP if kind == "RD" else t.CWL + burst + t.tWR
                last["PRE", b] = max(now + held, last["ACT", b] + t.tRAS)
    for (ch, start, end, rank), (other, begin, _, next_rank) in zip(sorted(bursts), sorted(bursts)[1:], strict=False):
        if ch == other and begin < end + (t.tRTRS if rank != next_rank else 0):
            found.append(f"data bus of channel {ch}: a burst from {begin} meets one from {start} to {end}")
    for bus, cycles in buses.items():
        if len(set(cycles)) < len(cycles):
            found.append(f"two commands in one cycle on bus {bus}")
    return found

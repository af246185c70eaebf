"""Random small PIM tiles: every field of the description that the sequencer or the lanes look at."""

import random

from siliconloom.arch import load_chip


def random_pim(seed, **fixed):
    """A chip with a pim tile; ``fixed`` sets fields of the tile."""
    chance = random.Random(seed)
    burst_length = chance.choice([2, 4, 8])
    bus_bits = chance.choice([bits for bits in (16, 32, 64) if 8 <= bits // 8 * burst_length <= 32])
    burst = bus_bits // 8 * burst_length
    groups, banks = chance.choice([(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2)])
    o = {
        "ranks": chance.choice([1, 1, 2]),
        "bank_groups": groups,
        "banks": banks,
        "rows": chance.choice([16, 64]),
        "columns": burst_length * chance.choice([2, 4, 8, 16]),
        "bus_bits": bus_bits,
        "burst_length": burst_length,
        "beats_per_clock": chance.choice([1, 2, 4]),
    }
    t = {
        name: chance.randint(low, high)
        for name, low, high in (
            ("CL", 2, 20),
            ("tRCD", 2, 16),
            ("tRP", 1, 16),
            ("tRRD_S", 1, 4),
            ("tCCD_S", 1, 2),
            ("tWR", 1, 16),
            ("tWTR_S", 1, 4),
            ("tRTP", 1, 8),
            ("tRTRS", 0, 3),
            ("tRFC", 10, 80),
            ("tREFI", 500, 1200),
        )
    }
    t["CWL"] = chance.randint(1, t["CL"] + 1)
    t["tRAS"] = t["tRCD"] + chance.randint(0, 20)
    t["tRRD_L"] = t["tRRD_S"] + chance.randint(0, 3)
    t["tFAW"] = t["tRRD_S"] + chance.randint(0, 30)
    t["tCCD_L"] = t["tCCD_S"] + chance.randint(0, 3)
    t["tWTR_L"] = t["tWTR_S"] + chance.randint(0, 4)
    if chance.random() < 0.3:
        t["tRC"] = t["tRAS"] + t["tRP"] + chance.randint(0, 5)
    tile = {
        "lanes": chance.choice([1, 2, 4, 8, 16]),
        "accumulators": chance.randint(1, 5),
        "global_buffer": f"{burst * chance.choice([1, 3, 8, 16])} B",
        "operands": chance.choice(["[bf16]", "[int8]", "[bf16, int8]", "[int8, bf16]"]),
        "activate_group": chance.choice([g for g in (1, 2, 4) if groups * banks % g == 0]),
        "commands": chance.choice(["all_bank", "per_bank"]),
        "dual_row_buffer": chance.choice(["true", "false"]),
        "activations": chance.choice(["shared", "separate"]),
        "refresh_ranks": chance.choice(["together", "in_turn"]),
        "bank_machines": chance.choice([1, 2]),
        "dram.controller.refresh": chance.choice(["rank", "rank", "none"]),
    } | fixed
    values = {f"tile.dram.organization.{k}": v for k, v in o.items()}
    values |= {f"tile.dram.timing.{k}": v for k, v in t.items()}
    values |= {f"tile.{k}": v for k, v in tile.items()}
    return load_chip("pim-hbm", [(key, str(value)) for key, value in values.items()])

"""What each part of a memory that computes is worth: GPT3-7B decode, 256 sequences of uneven length, four chips.

Run: python examples/pim_ablation.py
"""

import random

from siliconloom.evaluate.system import load_machine, system_step
from siliconloom.workloads import load_workload

BATCH = 256
STEPS = (
    ("attention on the arrays", {"policy.attention": "npu"}),
    (
        "attention in memory, one row buffer, dealt in turn",
        {"policy.attention": "pim", "policy.balance": "round_robin", "chip.pim.dual_row_buffer": "false"},
    ),
    (
        "two row buffers: the next weights come in meanwhile",
        {"policy.attention": "pim", "policy.balance": "round_robin", "policy.interleave": "never"},
    ),
    ("longest sequence to the least loaded channel", {"policy.attention": "pim", "policy.interleave": "never"}),
    ("two half batches interleaved", {"policy.attention": "pim", "policy.interleave": "always"}),
)


def main() -> None:
    """Simulate and print."""
    chance = random.Random(0)
    contexts = [min(20 + int(chance.expovariate(1 / 300)), 2048) for _ in range(BATCH)]
    graph = load_workload("gpt3-7b", [("phase", "decode"), ("batch", str(BATCH))])
    print(f"{'':52s} {'ms a step':>9s} {'tokens/s':>9s} {'of bound':>8s}")
    for name, sets in STEPS:
        system, chip = load_machine("neupims", list(sets.items()))
        result = system_step(system, graph, contexts=contexts, chip=chip)
        print(
            f"{name:52s} {result['seconds'] * 1e3:9.2f} {result['tokens_per_second']:9,.0f} "
            f"{result['bound']['achieved']:8.1%}"
        )


if __name__ == "__main__":
    main()

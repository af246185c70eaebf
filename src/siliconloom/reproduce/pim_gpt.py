"""PIM-GPT: one token at a time on GDDR6 whose banks multiply, with a small chip for the rest.

The library's ``pim-gpt`` decodes models of the GPT-2 family; products and attention are timed command by command. What
the card states of the paper is from memory, so it is a band, and the arithmetic behind it is checked.
"""

from __future__ import annotations

from siliconloom.arch import load_chip
from siliconloom.evaluate.system import system_step
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads import load_workload

MODELS = ("gpt2", "gpt2-medium", "gpt2-xl")
CONTEXT = 512
T4 = 320e9
"""Bytes per second of a T4's memory (NVIDIA data sheet)."""
CPU = 41e9
"""Bytes per second of two channels of DDR4-2666 (JESD79-4: 64 bits x 2666 MT/s each), a desktop's memory."""
LEAST, MOST = 41.0, 137.0
STATED = 1.3e9 * 2 / 4.1e12 * 1e3
SOFTWARE = (
    "the paper measured its GPU and CPU with their software at batch 1, which uses a small part of their memory's "
    "bandwidth; against all of it, no machine of this internal bandwidth can be more than 12.8 times as fast"
)


def card() -> Card:
    """Derive the internal bandwidth, the least time of a token, and the speed over memory-bound machines."""
    chip = load_chip("pim-gpt")
    assert chip.pim is not None
    pim = chip.pim
    rate = pim.channels * pim.banks * pim.dram.organization.request_bytes / pim.dot_interval * chip.clock
    rows = [
        CardRow("internal bandwidth, TB/s", rate / 1e12, 4.1, 0.01),
        CardRow("least time of a token of 1.3 G parameters, ms", 1.3e9 * 2 / rate * 1e3, STATED, 0.01),
    ]
    for model in MODELS:
        graph = load_workload(model, [("phase", "decode"), ("precision", "bf16"), ("context", str(CONTEXT))])
        seconds = system_step(None, graph, chip=chip)["seconds"]
        size = graph.weight_bytes + graph.kv_bytes
        rows += [
            CardRow(
                f"time of a token over its bytes at the internal bandwidth [{model}]",
                seconds * rate / size,
                1.0,
                0.0,
                sense="at least",
            ),
            CardRow(
                f"speed over a T4 at its memory's bandwidth, below the paper's over a real one [{model}]",
                size / T4 / seconds,
                LEAST,
                0.0,
                sense="at most",
            ),
            CardRow(
                f"speed over a T4, lower end of the paper's band [{model}]", size / T4 / seconds, LEAST, 0.2, SOFTWARE
            ),
            CardRow(
                f"speed over a desktop's CPU at its memory's bandwidth [{model}]",
                size / CPU / seconds,
                631.0,
                0.2,
                SOFTWARE,
            ),
        ]
    return Card(
        "pim-gpt",
        "PIM-GPT: decode of GPT-2 models at batch 1 in GDDR6",
        "Wu et al., PIM-GPT: A Hybrid Process-in-Memory Accelerator for Autoregressive Transformers, 2024",
        tuple(rows),
    )

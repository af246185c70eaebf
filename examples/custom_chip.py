"""Simulate a chip of your own from Python and say what holds it back.

Run: python examples/custom_chip.py
"""

from siliconloom.arch import Chip
from siliconloom.evaluate.chip import simulate

chip = Chip.model_validate(
    {
        "kind": "chip",
        "name": "mine",
        "clock": "800 MHz",
        "tile": {
            "kind": "npu",
            "array": {"rows": 32, "cols": 32, "dataflow": "weight_stationary", "load_rows": 4},
            "scratchpad": {"capacity": "512 KiB"},
            "accumulator": {"capacity": "128 KiB"},
            "vector": {"lanes": 32},
        },
        "memory": {"dram": {"kind": "lpddr5", "capacity": "8 GiB", "bandwidth": "51.2 GB/s", "latency": "100 ns"}},
    }
)

for phase in ("prefill", "decode"):
    result = simulate(chip, "gpt2", [("workload.phase", phase)]).result()
    busiest = max(result["units"], key=lambda unit: result["units"][unit]["utilization"])
    print(
        f"{phase:8s} {result['seconds'] * 1e3:8.2f} ms, {result['bound']['achieved']:.0%} of its "
        f"{result['bound']['name']} bound, array {result['utilization']:.0%} used, busiest unit: {busiest}"
    )

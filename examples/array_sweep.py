"""Sweep the size of the array and see when the memory becomes the limit.

Run: python examples/array_sweep.py
"""

from siliconloom.evaluate.chip import simulate

print(f"{'array':>9s} {'ms':>9s} {'used':>6s}  bound by")
for size in (8, 16, 32, 64):
    overrides = [
        ("tile.array.rows", str(size)),
        ("tile.array.cols", str(size)),
        ("tile.vector.lanes", str(size)),
        ("workload.layers", "2"),
        ("workload.sequence", "512"),
    ]
    result = simulate("npu-edge-int8", "gpt2", overrides).result()
    print(
        f"{size:4d}x{size:<4d} {result['seconds'] * 1e3:9.2f} {result['utilization']:6.1%}  {result['bound']['name']}"
    )

"""One matrix product with values: cycles from the simulator, numbers from the golden model, Verilog with a bench that
runs the same program. `docs/tour.md` follows it.

Run: python examples/one_product.py [DIR]        (DIR: where to write the Verilog; none is written without it)
"""

import sys
from pathlib import Path

import numpy as np

from siliconloom.arch import load_chip
from siliconloom.arch.document import Document
from siliconloom.execution.image import Image, room_of
from siliconloom.execution.quantize import Columns, Quantized
from siliconloom.execution.walk import At
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.chip.engine import duration, run
from siliconloom.sim.golden.functions import requantize
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram
from siliconloom.verification.vectors import predict
from siliconloom.workloads.load import read_workload

M, K, N = 64, 64, 96
PRODUCT = f"kind: gemms\nprecision: int8\ngemms: [{{name: product, m: {M}, k: {K}, n: {N}}}]"

chip = load_chip("npu-edge-int8")
chance = np.random.default_rng(7)
a = chance.integers(-128, 128, (M, K)).astype(np.int8)
b = chance.integers(-128, 128, (K, N)).astype(np.int8)
bias, multiplier, shift = np.zeros(N, np.int64), np.full(N, 15_000), np.full(N, 24)

# The program: the one that `loom sim` times.
graph = read_workload(Document.parse(PRODUCT), "product")
mapped = map_workload(chip, graph, lambda program: duration(program, chip), search=False)
program = mapped.program

# Main memory before the run: what the program reads, each in the layout that the units expect, and the program.
made = {At("product", 0): Quantized(np.ones(N), weights=b, columns=Columns(bias, multiplier, shift))}
base, size = room_of(mapped)
operands = np.zeros(size, np.uint8)
Image(mapped, made, inputs={"product": a}).write(operands)
loaded = LoadedProgram(program, operands, base)
for address, item in mapped.memory.objects():
    print(f"{item.role:10s} {item.size:6,d} B from {address:#x}")

# Values: the golden model runs the program; NumPy knows nothing of tiles.
after = loaded.loaded()
GoldenMachine(chip, after).run(program)
where = mapped.results["product"]
ours = after[where.address : where.address + M * where.row].view(np.int8).reshape(M, where.row)[:, :N]
sums = a.astype(np.int64) @ b.astype(np.int64)
expected = np.clip(requantize(sums, bias, multiplier, shift), -128, 127)
print(f"\nsums    {sums[0, :6]}\nresults {ours[0, :6]}")
print(f"{np.count_nonzero(ours != expected)} of {ours.size} results differ from NumPy's")

# Cycles: the simulator runs the same program. The array can do rows x columns products a cycle.
timed = run(program, chip, exact=True, trace_limit=100_000)
print("\ninstruction  leaves its queue  is complete")
for number, _, _, complete, leaves, *_ in timed.trace.tolist()[:12]:
    print(f"{number:11d}{leaves:18,d}{complete:13,d}")
bound = M * K * N // (chip.tile.array.rows * chip.tile.array.cols)
print(f"{timed.cycles:,} cycles; the array's bound is {bound:,}")

if len(sys.argv) > 1:
    bundle = build_rtl(chip, vectors=[predict(chip, loaded)])
    bundle.write(Path(sys.argv[1]))
    print(f"{bundle.top}: Verilog and a bench that runs this program are in {sys.argv[1]}")

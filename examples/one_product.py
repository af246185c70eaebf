"""One matrix product with values: cycles from the simulator, numbers from the golden model, Verilog with a bench that
runs the same program. `docs/tour.md` follows it.

Run: python examples/one_product.py [DIR]        (DIR: where to write the Verilog; none is written without it)
"""

import sys
from pathlib import Path

import numpy as np

from siliconloom.arch import load_chip
from siliconloom.arch.isa import disassemble
from siliconloom.mapper.chip.quantized import LayerWriter, Tensor, weight_image
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.chip.engine import run
from siliconloom.sim.golden.functions import requantize
from siliconloom.sim.golden.npu import GoldenMachine, parameter_planes
from siliconloom.verification.programs import RandomProgram
from siliconloom.verification.vectors import predict

M, K, N = 64, 64, 96
OPERAND, WEIGHTS, PARAMETERS, RESULT, PROGRAM, MEMORY = 0x0, 0x1000, 0x2800, 0x2C00, 0x5000, 0x8000

chip = load_chip("npu-edge")
chance = np.random.default_rng(7)
a = chance.integers(-128, 128, (M, K)).astype(np.int8)
b = chance.integers(-128, 128, (K, N)).astype(np.int8)
bias, multiplier, shift = np.zeros(N, np.int64), np.full(N, 15_000), np.full(N, 24)

# The program: tiles of the product through rings of buffers, the sums requantised to int8 and stored.
writer = LayerWriter(chip)
_, n_tile, k_tile = writer.gemm_tiles(M, N, K)
writer.gemm(Tensor(OPERAND, M, K, K), WEIGHTS, PARAMETERS, Tensor(RESULT, M, N, N))
program = writer.finish()
print(disassemble(program))

# Main memory before the run: what the program reads, each in the layout that the units expect, and the program.
before = np.zeros(MEMORY, np.uint8)
for base, content in (
    (OPERAND, a),
    (WEIGHTS, weight_image(b, chip.tile, (k_tile, n_tile))),
    (PARAMETERS, parameter_planes(bias, multiplier, shift, chip.tile.vector.lanes)),
    (PROGRAM, np.frombuffer(program.encode(), np.uint8)),
):
    data = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
    before[base : base + data.size] = data

# Values: the golden model runs the program; NumPy knows nothing of tiles.
after = before.copy()
GoldenMachine(chip, after).run(program)
ours = after[RESULT : RESULT + M * N].view(np.int8).reshape(M, N)
sums = a.astype(np.int64) @ b.astype(np.int64)
expected = np.clip(requantize(sums, bias, multiplier, shift), -128, 127)
print(f"\nsums    {sums[0, :6]}\nresults {ours[0, :6]}")
print(f"{np.count_nonzero(ours != expected)} of {ours.size} results differ from NumPy's")

# Cycles: the simulator runs the same program. The array can do rows x columns products a cycle.
timed = run(program, chip, exact=True, trace_limit=100)
print("\ninstruction  leaves its queue  is complete")
for number, _, _, complete, leaves in timed.trace.tolist():
    print(f"{number:11d}{leaves:18,d}{complete:13,d}")
bound = M * K * N // (chip.tile.array.rows * chip.tile.array.cols)
print(f"{timed.cycles:,} cycles; the array's bound is {bound:,}")

if len(sys.argv) > 1:
    vectors = [predict(chip, RandomProgram(program, before, PROGRAM))]
    bundle = build_rtl(chip, vectors=vectors)
    bundle.write(Path(sys.argv[1]))
    print(f"{bundle.top}: Verilog and a bench that runs this program are in {sys.argv[1]}")

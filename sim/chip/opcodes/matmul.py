"""Products on the array: the fold run that the kernel overlaps with the product before."""

from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.packing import weight_bytes, worked_rows
from siliconloom.arch.tile import NpuTile, SystolicTile
from siliconloom.sim.chip.opcodes import TIMINGS, Counter, Timing, Work
from siliconloom.sim.timing.systolic import gemm_run


def _times(work: Work) -> dict[str, int]:
    i = work.instruction
    run = gemm_run(work.tile.array, i.m, i.n, i.k, i.packing)
    return {
        "completion": 0 if isinstance(work.tile, SystolicTile) else work.tile.array.accumulator_write,
        "first_load": run.first_load,
        "stream": run.stream_beats,
        "work": run.work,
        "advance": run.advance,
        "output": run.output_beats,
        "stationary": run.stationary_beats,
    }


def _counts(work: Work) -> dict[Counter, int]:
    i, array = work.instruction, work.tile.array
    deep = int(worked_rows(array, i.k, i.packing))
    macs = {Counter.MACS: i.m * i.n * deep}
    if not isinstance(work.tile, NpuTile):
        return macs
    panels_n, panels_m, folds_k = -(-i.n // array.cols), -(-i.m // array.cols), -(-deep // array.rows)
    if array.dataflow == "weight_stationary":
        values = i.k * i.n + panels_n * i.m * i.k
    elif array.dataflow == "input_stationary":
        values = i.m * i.k + panels_m * i.n * i.k
    else:
        values, folds_k = panels_n * i.m * i.k + -(-i.m // array.rows) * i.n * i.k, 1
    result, read = i.dtype.accumulator.size(i.m * i.n), i.dtype.size(values)
    if i.packing is not None:
        read = i.dtype.size(values - i.k * i.n) + weight_bytes(array, i.packing, i.n, i.k, i.narrow)
    return macs | {
        Counter.SCRATCHPAD_READ: read,
        Counter.ACCUMULATOR_WRITE: folds_k * result,
        Counter.ACCUMULATOR_READ: (folds_k - 1 + i.accumulate) * result,
    }


TIMINGS.add(Opcode.MATMUL, Timing(times=_times, counts=_counts, bare=True))

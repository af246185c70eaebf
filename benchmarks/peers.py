"""Peers that install from PyPI, each in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import CACHE, measured

RUN = """
import resource, sys, time
from scalesim.scale_sim import scalesim
began, used = time.perf_counter(), time.process_time()
scalesim(save_disk_space=True, verbose=False, config=sys.argv[1], topology=sys.argv[2],
         layout=sys.argv[3], input_type_gemm=True).run_scale(top_path=sys.argv[4])
print()
print(time.perf_counter() - began, time.process_time() - used,
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
CONFIG = """[general]
run_name = bench
[architecture_presets]
ArrayHeight: {rows}
ArrayWidth: {cols}
IfmapSramSzkB: 8192
FilterSramSzkB: 8192
OfmapSramSzkB: 8192
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Bandwidth : 128
Dataflow : ws
ReadRequestBuffer: 64
WriteRequestBuffer: 64
[layout]
IfmapCustomLayout: False
FilterCustomLayout: False
IfmapSRAMBankBandwidth: 128
IfmapSRAMBankNum: 1
IfmapSRAMBankPort: 2
FilterSRAMBankBandwidth: 128
FilterSRAMBankNum: 1
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport : false
SparseRep : ellpack_block
OptimizedMapping : false
BlockSize : 8
RandomNumberGeneratorSeed : 40
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""


@dataclass(frozen=True)
class Peer:
    """One GEMM as SCALE-Sim ran it."""

    cycles: int
    process_s: float
    simulation_s: float
    cpu_s: float
    peak_mib: float


class ScaleSim:
    """SCALE-Sim 3 on weight-stationary arrays, stall free."""

    def __init__(self) -> None:
        self.python = CACHE / "scale-sim" / "bin" / "python"
        ready = CACHE / "scale-sim" / "ready"
        self.available = ready.exists()
        if self.available:
            return
        subprocess.run([sys.executable, "-m", "venv", str(ready.parent)], check=True)
        install = [str(self.python), "-m", "pip", "install", "-q", "scalesim>=3,<4", "numpy<2.4"]
        self.available = subprocess.run(install, capture_output=True).returncode == 0
        if self.available:
            ready.touch()
        else:
            print("SCALE-Sim could not be installed; its figures are left out", file=sys.stderr)

    def gemm(self, m: int, n: int, k: int, rows: int = 128, cols: int = 128) -> Peer:
        """Simulate one product in a process of its own."""
        return self.gemms([(m, n, k)], rows, cols)

    def gemms(self, shapes: Sequence[tuple[int, int, int]], rows: int = 128, cols: int = 128) -> Peer:
        """Simulate products one after the other in one process; the cycles are the first one's."""
        work = CACHE / "scale-sim-run"
        work.mkdir(parents=True, exist_ok=True)
        (work / "topology.csv").write_text(
            "Layer,M,N,K,\n" + "".join(f"g{i},{m},{n},{k},\n" for i, (m, n, k) in enumerate(shapes))
        )
        (work / "chip.cfg").write_text(CONFIG.format(rows=rows, cols=cols))
        (work / "layout.csv").write_text("Layer,\n")
        files = (work / name for name in ("chip.cfg", "topology.csv", "layout.csv", "out"))
        process_s, printed = measured([str(self.python), "-c", RUN, *map(str, files)])
        simulation_s, cpu_s, peak_mib = map(float, printed.split()[-3:])
        return Peer(_cycles(work / "out"), process_s, simulation_s, cpu_s, peak_mib)


def _cycles(folder: Path) -> int:
    report = next(folder.rglob("COMPUTE_REPORT.csv")).read_text().splitlines()
    heading, values = ([cell.strip() for cell in line.split(",")] for line in report[:2])
    names = [name.lower() for name in heading]
    column = next(i for i, name in enumerate(names) if name.startswith("total cycles") and "prefetch" not in name)
    return int(float(values[column])) + 1  # its counts start at zero

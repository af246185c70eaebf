"""The GPU at hand, through PyTorch: CUDA (NVIDIA, run on H100 and H200) or ROCm (AMD, written by its documentation)."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

from siliconloom.arch.errors import LoomError
from siliconloom.baselines.jobs import Deployment
from siliconloom.baselines.measure import CannotRun, MeasuringCase, Sensors
from siliconloom.baselines.operations import Op, Precision
from siliconloom.baselines.torch_cases import prepare
from siliconloom.baselines.torch_operations import Prepared, TorchDevice

GRAPH_SECONDS = 1e-3
GRAPH_CALLS = 64
"""A graph holds calls for about `GRAPH_SECONDS`, at most `GRAPH_CALLS` (more when there are more copies)."""
HIP_CACHE = 256 * 2**20
"""Infinity Cache of MI300X, which PyTorch does not report."""

NEEDED = "loom measure needs PyTorch (pip install torch) and a CUDA or ROCm GPU"
NAMES = (
    (r"B200", "b200"),
    (r"H200", "h200"),
    (r"H100.*PCIe", "h100-pcie"),
    (r"H100.*(HBM3|SXM)", "h100"),
    (r"A100-SXM\d?-80GB", "a100"),
    (r"A100-SXM\d?-40GB", "a100-40gb"),
    (r"A100.*80GB.*PCIe", "a100-pcie-80gb"),
    (r"A100-PCI[Ee]-40GB", "a100-pcie-40gb"),
    (r"V100-SXM\d?", "v100"),
    (r"V100-PCI[Ee]-(\d+)GB", r"v100-pcie-\1gb"),
    (r"L40S", "l40s"),
    (r"\bA40\b", "a40"),
    (r"RTX 4090\b(?! D)", "rtx-4090"),
    (r"MI300X", "mi300x"),
    (r"MI210", "mi210"),
    (r"\bT4\b", "t4"),
)
"""What PyTorch calls a GPU, and its name in tables."""


def table_name(device: str) -> str:
    """Name of a GPU in tables, from the name PyTorch gives it: a library name, or its own in small letters."""
    for pattern, name in NAMES:
        if found := re.search(pattern, device):
            return found.expand(name)
    plain = re.sub(r"^(NVIDIA|AMD|Tesla)( GeForce| Instinct)? ", "", device)
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


def open_backend() -> TorchBackend:
    """The machine's GPUs; raises `LoomError` that says what is missing."""
    if importlib.util.find_spec("torch") is None:
        raise LoomError(f"{NEEDED}; PyTorch is not installed")
    try:
        torch: Any = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise LoomError(f"{NEEDED}; PyTorch does not load: {str(error).splitlines()[0]}") from None
    if not torch.cuda.is_available():
        raise LoomError(f"{NEEDED}; PyTorch {torch.__version__} sees none")
    return TorchBackend(torch, "cuda")


class TorchBackend:
    """A `siliconloom.baselines.measure.Backend`. On ``device="cpu"`` only its own tests run it."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self._device = torch, device
        self._cuda = device.startswith("cuda")
        self.gpus = torch.cuda.device_count() if self._cuda else 1
        self.device = torch.cuda.get_device_name() if self._cuda else "CPU"
        self.gpu = table_name(self.device)
        self._hip = getattr(torch.version, "hip", None)
        self.software = (f"torch {torch.__version__}", *self._versions())
        self.details = (
            "PyTorch, random operands, results compared with float32; CUDA graphs between two events; weights, keys "
            "and values rotate over copies of four times the last cache, activations stay in it."
        )
        self._smi = shutil.which("nvidia-smi") if self._cuda and not self._hip else None
        self._readings = bool(self._cuda)
        self._nvml: Any = None
        self._handle: Any = None

    def _versions(self) -> list[str]:
        if self._hip:
            return [f"ROCm {self._hip}"]
        return [f"CUDA {self.torch.version.cuda}"] if self._cuda else []

    def prepare(self, job: Deployment) -> list[MeasuringCase]:
        """Every way to run an operation; raises `CannotRun`."""
        if job.op is Op.ALL_REDUCE:
            if not 1 < job.gpus <= self.gpus:
                raise CannotRun(f"needs {job.gpus} GPUs, there are {self.gpus}")
            return [AllReduce(self.torch, job)]
        if job.gpus > 1:
            raise CannotRun(f"{job.op} over several GPUs is not measured")
        if self._cuda and job.dtype is Precision.FP8 and not self._hip and self._capability() < (8, 9):
            raise CannotRun(f"{self.device} has no fp8")
        try:
            return [TorchCase(self.torch, made, cuda=self._cuda) for made in prepare(self._place(), job)]
        except CannotRun:
            raise
        except Exception as error:
            raise CannotRun(_first_line(error)) from None

    def sensors(self) -> Sensors:
        """Power and clock now, from the driver's library or nvidia-smi; nothing where neither is there."""
        if self._readings:
            try:
                return Sensors(self._power(), float(self.torch.cuda.clock_rate()))
            except Exception:  # the library that reads them is another on every platform, and optional
                self._readings = False
        if self._smi:
            return parse_smi(_ask(self._smi))
        return Sensors()

    def _power(self) -> float:
        """Watts of this moment where the driver tells them; `power_draw` is a mean over a second on recent GPUs."""
        if self._hip:
            return float(self.torch.cuda.power_draw()) / 1e3
        if self._handle is None:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{self.torch.cuda.get_device_properties(0).uuid}")
        (value,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [self._nvml.NVML_FI_DEV_POWER_INSTANT])
        if value.nvmlReturn != 0:
            raise LoomError("the driver does not tell the power of a moment")
        return float(value.value.uiVal) / 1e3

    def _capability(self) -> tuple[int, int]:
        major, minor = self.torch.cuda.get_device_capability()
        return major, minor

    def _place(self) -> TorchDevice:
        if not self._cuda:
            return TorchDevice(torch=self.torch, device=self._device, cache_bytes=2**20, memory_bytes=2**30)
        self.torch.cuda.empty_cache()
        cache = int(getattr(self.torch.cuda.get_device_properties(0), "L2_cache_size", 0)) or 64 * 2**20
        free = int(self.torch.cuda.mem_get_info()[0])
        cache = max(cache, HIP_CACHE) if self._hip else cache
        return TorchDevice(torch=self.torch, device=self._device, cache_bytes=cache, memory_bytes=free)


class TorchCase:
    """One prepared operation, recorded as a graph where it can be."""

    def __init__(self, torch: Any, made: Prepared, *, cuda: bool) -> None:
        self.torch, self._made, self._cuda = torch, made, cuda
        self.software = made.software
        self._graph: Any = None
        self._calls = len(made.calls)
        self._ready = False

    def error(self) -> float:
        """Error of one result against float32, as a share of the norm of the result."""
        try:
            found, expected = self._made.check()
            wide = found.to(expected.dtype)
            return float((wide - expected).norm() / expected.norm().clamp_min(1e-30))
        except CannotRun:
            raise
        except Exception as error:  # of compilers and drivers there are all kinds
            raise CannotRun(_first_line(error)) from None

    def run(self, launches: int, during: Callable[[], None] | None = None) -> float:
        """Seconds of that many launches: whole rounds over the copies are timed, and their share is given."""
        try:
            if not self._ready:
                self._record()
            rounds = max(1, -(-launches // self._calls))
            return self._time(rounds, during) * launches / (rounds * self._calls)
        except CannotRun:
            raise
        except Exception as error:
            raise CannotRun(_first_line(error)) from None

    def close(self) -> None:
        """Give the memory back."""
        self._graph = None
        self._made.calls.clear()

    def _round(self) -> None:
        for index in range(self._calls):
            self._made.calls[index % len(self._made.calls)]()

    def _record(self) -> None:
        """Run the operation a few times, then record as many calls as make a graph worth its launch."""
        self._ready = True
        for _ in range(3):
            self._made.calls[0]()
        if not self._cuda:
            return
        each = self._time(1, None) / self._calls
        copies = len(self._made.calls)
        wanted = min(GRAPH_CALLS, max(1, round(GRAPH_SECONDS / max(each, 1e-9))))
        self._calls = copies * max(1, -(-wanted // copies))
        stream = self._made.stream or self.torch.cuda.Stream()
        stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(stream):
            self._made.calls[0]()
        self.torch.cuda.current_stream().wait_stream(stream)
        graph = self.torch.cuda.CUDAGraph()
        try:
            with self.torch.cuda.graph(graph, stream=stream):
                self._round()
        except RuntimeError:
            self.torch.cuda.synchronize()
            self.software += " no graph"
            return
        self._graph = graph

    def _time(self, rounds: int, during: Callable[[], None] | None) -> float:
        body = self._round if self._graph is None else self._graph.replay
        if not self._cuda:
            began = time.perf_counter()
            for _ in range(rounds):
                body()
            seconds = time.perf_counter() - began
            if during is not None:
                during()
            return seconds
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        start.record()
        for _ in range(rounds):
            body()
        end.record()
        if during is not None:
            during()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


class AllReduce:
    """NCCL's (RCCL's) all-reduce over the GPUs of this machine, launched from one process, without a graph."""

    def __init__(self, torch: Any, job: Deployment) -> None:
        self.torch = torch
        version = ".".join(map(str, torch.cuda.nccl.version()))
        self.software = f"NCCL {version}"
        count = int(job.bytes // job.dtype.size)
        kind = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16, Precision.FP32: torch.float32}
        if job.dtype not in kind or not count:
            raise CannotRun(f"all-reduce of {job.bytes} bytes of {job.dtype} is not measured")
        self._buffers = [torch.randn(count, device=f"cuda:{i}").to(kind[job.dtype]) for i in range(job.gpus)]
        self._results = [torch.empty_like(buffer) for buffer in self._buffers]

    def _launch(self) -> None:
        self.torch.cuda.nccl.all_reduce(self._buffers, self._results)

    def error(self) -> float:
        """Error of the sum on the last GPU against float32."""
        self._launch()
        self._wait()
        expected = sum(buffer.cpu().float() for buffer in self._buffers)
        return float((self._results[-1].cpu().float() - expected).norm() / expected.norm())

    def run(self, launches: int, during: Callable[[], None] | None = None) -> float:
        """Seconds of the slowest GPU."""
        events = []
        self._wait()
        for index in range(len(self._buffers)):
            with self.torch.cuda.device(index):
                pair = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
                pair[0].record()
                events.append(pair)
        for _ in range(launches):
            self._launch()
        for index, pair in enumerate(events):
            with self.torch.cuda.device(index):
                pair[1].record()
        if during is not None:
            during()
        self._wait()
        return max(float(start.elapsed_time(end)) for start, end in events) / 1e3

    def close(self) -> None:
        """Give the memory back."""
        self._buffers.clear()
        self._results.clear()

    def _wait(self) -> None:
        for index in range(len(self._buffers)):
            self.torch.cuda.synchronize(index)


def parse_smi(text: str) -> Sensors:
    """Power and clock from a line such as ``687.42, 1410``; what is not a number is not known."""
    values: list[float | None] = []
    for part in [*text.split("\n")[0].split(","), "", ""][:2]:
        try:
            values.append(float(part))
        except ValueError:
            values.append(None)
    return Sensors(*values)


def _ask(smi: str) -> str:
    query = [smi, "--query-gpu=power.draw.instant,clocks.sm", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r'[",]', " ", lines[0])[:160]


__all__ = ["NEEDED", "TorchBackend", "open_backend", "parse_smi", "table_name"]

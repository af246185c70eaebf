"""The measuring harness on a machine that is made up: its clock is a number, its GPU a table of times."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.baselines import torch_backend
from siliconloom.baselines.jobs import Deployment, load_jobs, load_layer, parse_dtypes
from siliconloom.baselines.measure import QUICK, TOLERANCE, CannotRun, Sensors, Settings, measure, time_case, to_table
from siliconloom.baselines.operations import Op, Precision
from siliconloom.baselines.tables import load_file, write_table
from siliconloom.baselines.validation import conflicts
from siliconloom.cli import main
from siliconloom.evaluate.measuring import measure_gpu

GEMM = Deployment(op=Op.GEMM, m=64, n=64, k=64, batch=1)


class Clockwork:
    """A case whose launches take ``seconds`` each, the first of a run ``warm`` more."""

    def __init__(self, seconds, *, warm=0.0, error=0.0, jitter=(1.0,), broken=None):
        self.seconds, self.warm, self.wrong, self.jitter, self.broken = seconds, warm, error, jitter, broken
        self.software, self.runs, self.total, self.closed = "clockwork 1", [], 0.0, False

    def error(self):
        return self.wrong

    def run(self, launches, during=None):
        if self.broken:
            raise CannotRun(self.broken)
        self.runs.append((launches, during is not None))
        cold = 0 if len(self.runs) > 1 else self.warm
        took = launches * self.seconds * self.jitter[len(self.runs) % len(self.jitter)] + cold
        self.total += took
        if during is not None:
            during()
        return took

    def close(self):
        self.closed = True


class Workshop:
    device, gpu, gpus, software, details = "Clockwork GPU", "clockwork", 1, ("spring 2",), "Counted."

    def __init__(self, make=lambda job: Clockwork(1e-5), sensors=(Sensors(300.0, 1500.0),)):
        self.make, self.seen, self.cases = make, list(sensors), []

    def prepare(self, job):
        if job.dtype is Precision.FP8:
            raise CannotRun("no fp8")
        self.cases.append(self.make(job))
        return self.cases[-1:]

    def sensors(self):
        self.seen.append(self.seen.pop(0))
        return self.seen[-1]


@given(st.floats(1e-7, 10), st.floats(0, 1), st.integers(1, 30), st.floats(1e-4, 0.1), st.floats(0, 0.5))
def test_a_steady_machine_gives_its_own_time_whatever_the_first_launch_costs(each, warm, samples, length, hold):
    settings = Settings(samples=samples, sample_seconds=length, hold_seconds=hold)
    case = Clockwork(each, warm=warm)
    found = time_case(GEMM, case, Workshop(), settings)
    assert found.seconds == pytest.approx(each)
    assert found.spread == pytest.approx(0, abs=1e-9)
    timed = [launches for launches, during in case.runs if during]
    assert len(timed) == samples
    assert all(launches == 100_000 or launches * each >= length * (1 - 1e-9) for launches in timed)
    before = sum(launches for launches, during in case.runs if not during) * each
    assert before >= hold
    assert case.total <= warm + 10 * (length * samples + hold + 0.1) + (samples + 20) * each


def test_the_median_is_taken_and_the_spread_is_told():
    case = Clockwork(1e-5, jitter=(1.0, 1.0, 1.0, 5.0))
    found = time_case(GEMM, case, Workshop(), Settings(samples=20))
    assert found.seconds == pytest.approx(1e-5)
    assert found.spread == pytest.approx(4)


def test_power_and_clock_are_medians_of_what_is_known():
    sensors = [Sensors(100.0, None), Sensors(300.0, None), Sensors(None, None), Sensors(200.0, None)]
    found = time_case(GEMM, Clockwork(1e-5), Workshop(sensors=sensors), Settings(samples=4))
    assert (found.power_w, found.clock_mhz) == (200, None)


@pytest.mark.parametrize("error", [0.5, -1.0, float("nan")])
def test_a_wrong_result_is_left_out_with_its_error(error):
    workshop = Workshop(lambda job: Clockwork(1e-5, error=error))
    found = measure([GEMM], workshop, QUICK)
    assert not found.rows
    assert (
        found.skipped[0][1] == f"clockwork 1: its result differs from float32 by {error:.2g} of its norm, 0.02 allowed"
    )
    assert workshop.cases[0].closed
    with pytest.raises(
        LoomError, match=r"nothing could be measured on this Clockwork GPU: gemm m=64 .*: its result differs"
    ):
        to_table("x", found, workshop, QUICK)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_clock_that_gives_no_time_is_not_believed(seconds):
    found = measure([GEMM], Workshop(lambda job: Clockwork(seconds)), QUICK)
    assert "the device's clock gave" in found.skipped[0][1]


def test_what_cannot_run_is_told_and_the_rest_is_measured():
    made = iter([Clockwork(1e-5), Clockwork(1e-5, broken="out of memory"), Clockwork(2e-5)])
    shares = []
    jobs = [GEMM, replace(GEMM, m=128), replace(GEMM, dtype=Precision.FP8), replace(GEMM, m=256)]
    workshop = Workshop(lambda job: next(made))
    found = measure(jobs, workshop, QUICK, shares.append)
    assert [row.job.m for row in found.rows] == [64, 256]
    assert [reason for _, reason in found.skipped] == ["clockwork 1: out of memory", "no fp8"]
    assert shares == [0.25, 0.5, 0.75, 1]
    assert all(case.closed for case in workshop.cases)
    table = to_table("x", found, workshop, QUICK)
    assert table.time_us.tolist() == [10, 20]
    assert {(d.why, d.rows) for d in table.provenance.dropped} == {("clockwork 1: out of memory", 1), ("no fp8", 1)}
    assert table.provenance.method == "short burst"
    assert to_table("x", found, workshop, Settings()).provenance.method == "sustained"


def test_after_the_limit_nothing_begins_and_the_rest_is_told():
    jobs = [replace(GEMM, m=m) for m in range(1, 41)]
    now = iter(range(1000))
    found = measure(jobs, Workshop(), QUICK, limit_seconds=10, clock=lambda: float(next(now)))
    assert len(found.rows) == 10
    assert len(found.skipped) == 30
    assert {reason for _, reason in found.skipped} == {"not begun within 10 s"}
    sizes = [row.job.m for row in found.rows]
    assert sorted([*sizes, *(job.m for job, _ in found.skipped)]) == list(range(1, 41))
    assert sizes != sorted(sizes)  # a sample of all, not the first


def test_the_power_of_a_burst_is_not_told():
    assert time_case(GEMM, Clockwork(1e-5), Workshop(), QUICK).power_w is None
    assert time_case(GEMM, Clockwork(1e-5), Workshop(), Settings()).power_w == 300


@given(st.booleans(), st.sampled_from([Op.ATTENTION_PREFILL, Op.ATTENTION_BACKWARD]))
def test_a_file_says_whether_attention_is_causal(causal, op):
    job = Deployment(op=op, batch=1, q_len=8, kv_len=8, heads=2, kv_heads=2, head_dim=16, causal=causal)
    found = measure([job], Workshop(), QUICK)
    with tempfile.TemporaryDirectory() as folder:
        write_table(to_table("x", found, Workshop(), QUICK), Path(folder) / "x.csv")
        again = load_file(Path(folder) / "x.csv").operations
    assert again.row(0) == to_table("x", found, Workshop(), QUICK).operations.row(0)
    assert again.causal.tolist() == [causal]


def test_the_file_that_is_written_is_a_baseline(tmp_path):
    result, made = measure_gpu(tmp_path / "mine.csv.gz", ["llama3-8b"], "bf16,fp8", quick=True, backend=Workshop())
    table = load_file(tmp_path / "mine.csv.gz")
    assert len(table) == len(result["rows"]) == len(made)
    assert not conflicts(table)
    assert set(table.gpu.tolist()) == {"clockwork"}
    assert set(table.time_us.tolist()) == {10.0}
    assert {
        "gemm",
        "attention_prefill",
        "attention_decode",
        "rmsnorm",
        "silu_mul",
        "layer_prefill",
        "layer_decode",
    } == set(map(str, table.operations.ops()))
    assert [entry["reason"] for entry in result["skipped"]] == ["no fp8"] * 15
    assert json.loads(json.dumps(result, allow_nan=False))["schema"] == "siliconloom.measurement/1"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.csv.gz", "mine.yaml"]


def test_an_interruption_leaves_nothing(tmp_path):
    def stop(job):
        if job.m == 1024:
            raise KeyboardInterrupt
        return Clockwork(1e-5)

    with pytest.raises(KeyboardInterrupt):
        measure_gpu(tmp_path / "x.csv", ["llama3-8b"], "bf16", quick=True, backend=Workshop(stop))
    assert not list(tmp_path.iterdir())


def test_a_models_operations_are_those_of_its_layers():
    layer = load_layer("llama3-8b")
    jobs = load_jobs(["llama3-8b"])
    products = {(job.n, job.k) for job in jobs if job.op is Op.GEMM}
    assert products == {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}
    assert {job.m for job in jobs if job.op is Op.GEMM} >= {1, 8192}
    assert {job.dtype for job in jobs if job.op is Op.GEMM} == {"bf16", "fp8"}
    assert all(job.heads == layer.heads for job in jobs if job.op is Op.ATTENTION_DECODE)
    assert len(jobs) == len(set(jobs))
    assert len(load_jobs(["llama3-8b", "llama3-8b"], quick=True)) == len(load_jobs(["llama3-8b"], quick=True))
    assert {job.op for job in load_jobs(["llama3-70b"], gpus=4)} >= {Op.ALL_REDUCE}


def test_a_file_of_operations_is_measured_row_by_row(tmp_path):
    (tmp_path / "ops.csv").write_text(
        "op,m,n,k,q_len,heads,kv_heads,head_dim,dtype\ngemm,1,2,3,,,,,fp16\nattention_prefill,,,,8,4,2,64,\n"
    )
    gemm, attention = load_jobs([str(tmp_path / "ops.csv")])
    assert gemm == Deployment(op=Op.GEMM, m=1, n=2, k=3, batch=1, dtype=Precision.FP16)
    assert (attention.kv_len, attention.causal, attention.batch) == (8, True, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--shapes", "lama3-8b"],
            "--shapes lama3-8b: no such file and no workload of that name; did you mean 'llama3-8b'?",
        ),
        (
            ["--shapes", "gpt2"],
            "--shapes gpt2: only the layers of models like Llama and Mixtral can be measured; or write a CSV file",
        ),
        (["--shapes", "missing.csv"], "missing.csv: cannot be read: No such file or directory"),
        (["--dtype", "bf61"], f"--dtype: must be among {', '.join(Precision)} (got 'bf61'); did you mean 'bf16'?"),
        (["-o", "x.parquet"], "x.parquet: a baseline file is named .csv or .csv.gz"),
        (["-o", "nowhere/x.csv"], "nowhere/x.csv: the folder nowhere does not exist"),
    ],
)
def test_bad_input_is_said_before_anything_else(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["measure", *options]) == 2
    assert capsys.readouterr().err == f"loom: {message}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("found", [False, True])
def test_without_pytorch_or_without_a_gpu_it_says_what_is_needed(found, tmp_path, monkeypatch, capsys):
    class Torch:
        __version__ = "9.9"

        class cuda:
            is_available = staticmethod(lambda: False)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch_backend.importlib.util, "find_spec", lambda name: found or None)
    monkeypatch.setattr(torch_backend.importlib, "import_module", lambda name: Torch)
    assert main(["measure"]) == 2
    why = "PyTorch 9.9 sees none" if found else "PyTorch is not installed"
    needed = "loom measure needs PyTorch (pip install torch) and a CUDA or ROCm GPU"
    assert capsys.readouterr().err == f"loom: {needed}; {why}\n"
    assert not list(tmp_path.iterdir())


def test_precisions_may_be_named_as_pytorch_does():
    assert parse_dtypes("bfloat16, fp8,bf16") == (Precision.BF16, Precision.FP8)
    assert set(TOLERANCE) == set(Precision)


@pytest.mark.parametrize(
    "stored", ["gemm,16,256,256,,,,int4,,", "gemm,16,256,256,,,,,2of4,", "attention_decode,,,,64,8,64,,,fp8"]
)
def test_what_is_stored_in_another_format_is_not_measured_as_if_it_were_not(tmp_path, stored):
    columns = "op,m,n,k,kv_len,heads,head_dim,weights,sparsity,cache"
    (tmp_path / "ops.csv").write_text(f"{columns}\n{stored}\n")
    with pytest.raises(NotSupported, match="not supported: measuring"):
        load_jobs([str(tmp_path / "ops.csv")])

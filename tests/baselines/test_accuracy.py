"""The GPU model against the measured tables: shape families that its fit never saw, GPUs that nothing was fitted to."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.names import gpu_names
from siliconloom.baselines import efficiency, tables
from siliconloom.baselines.attention_backward import backward_times
from siliconloom.baselines.efficiency import FOLDER, load_efficiency
from siliconloom.baselines.families import split
from siliconloom.baselines.lookup import measured
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import ELEMENTWISE, Op
from siliconloom.baselines.predict import predict
from siliconloom.baselines.residuals import NO_FIELDS, unaligned
from siliconloom.baselines.roofline import flops
from siliconloom.baselines.stacks import STACKS, Stack, find_stack
from siliconloom.baselines.validation import validate
from siliconloom.evaluate.runs import predict_run, predict_step

CARDS = {"a100-80gb": "a100", "a100-pcie-80gb": "a100", "a100-pcie-40gb": "a100-40gb", "v100-pcie-32gb": "v100"}
"""Cards of the tables, and the library's of the same limits."""


def error(name, gpu, software="", *ops, keep=None, unseen=True, **options):
    """Median absolute error on a table's withheld rows."""
    table = tables.load(name)
    mask = (table.gpu == gpu) & np.char.startswith(table.software.astype(str), software)
    if ops:
        mask &= table.operations.among(*ops)
    if keep is not None:
        mask &= keep(table.operations)
    if unseen:
        mask &= split(table)[1]
    assert mask.sum() >= 25
    table = table.select(mask)
    ratio = predict(load_gpu(gpu), table.operations, **options).seconds * 1e6 / table.time_us - 1
    return float(np.median(np.abs(ratio)))


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_products_of_unseen_families(gpu):
    def keep(large):
        return lambda o: (o.element_bytes() == 2) & ((flops(o) >= 1e9) == large)

    assert error(f"aiconfigurator-gemm-{gpu}", gpu, "trtllm", keep=keep(True)) < 0.06
    assert error(f"aiconfigurator-gemm-{gpu}", gpu, "trtllm", keep=keep(False)) < 0.15
    assert error(f"aiconfigurator-gemm-{gpu}", gpu, "sglang", keep=keep(True)) < 0.08  # not fitted to


@pytest.mark.parametrize("gpu", ["a100", "h100"])
@pytest.mark.parametrize("op", [Op.ATTENTION_PREFILL, Op.ATTENTION_DECODE])
def test_attention_of_unseen_families(gpu, op):
    assert error(f"aiconfigurator-attention-{gpu}", gpu, "vllm", op) < 0.10


def test_all_reduce_of_unseen_group_sizes():
    found = []
    for gpu in ("a100", "h100"):
        table = tables.load("aiconfigurator-collectives")
        mask = (table.gpu == gpu) & table.operations.among(Op.ALL_REDUCE) & split(table)[1]
        mask &= np.char.startswith(table.software.astype(str), "NCCL") & (table.operations.bytes >= 2**16)
        table = table.select(mask & (table.operations.element_bytes() == 2))
        found += (predict(load_gpu(gpu), table.operations).seconds * 1e6 / table.time_us - 1).tolist()
    assert len(found) >= 25
    assert np.median(np.abs(found)) < 0.10


@pytest.mark.slow(seconds=1)
def test_gpus_that_nothing_was_fitted_to():
    def tensor_cores(o):
        return (o.element_bytes() == 2) & (flops(o) >= 1e9)

    assert error("aiconfigurator-gemm-h200-vllm", "h200", unseen=False, sustained=True) < 0.20
    assert error("aiconfigurator-attention-h200", "h200", unseen=False, sustained=True) < 0.20
    assert error("deepbench-gemm", "v100", keep=tensor_cores, unseen=False, graph=False) < 0.20


def aligned(o):
    return ~unaligned(o)


def test_what_was_measured_by_us_and_nothing_was_fitted_to():
    """Products of another program and an H200's element-wise kernels and attention by the H100's constants."""
    assert error("torch-h100", "h100", "torch", Op.GEMM, keep=lambda o: aligned(o) & (o.element_bytes() == 2)) < 0.10
    kinds = [op for op in ELEMENTWISE if op is not Op.SOFTMAX]
    table = tables.load("torch-h200")
    table = table.select(table.operations.among(*kinds) & ~np.char.endswith(table.software.astype(str), "eager"))
    ratio = predict(load_gpu("h200"), table.operations, fields=NO_FIELDS).seconds * 1e6 / table.time_us - 1
    assert len(ratio) > 200
    assert np.median(np.abs(ratio)) < 0.08
    for program in ("flash", "cudnn"):
        table = tables.load("torch-h200")
        named = np.char.find(table.software.astype(str), program) >= 0
        for op, least in ((Op.ATTENTION_PREFILL, 50), (Op.ATTENTION_DECODE, 90), (Op.ATTENTION_BACKWARD, 20)):
            rows = table.select(named & table.operations.among(op))
            asked = {"software": f"torch-{program}", "cache_write": False, "fields": NO_FIELDS}
            ratio = predict(load_gpu("h200"), rows.operations, **asked).seconds * 1e6 / rows.time_us - 1
            assert len(ratio) > least
            assert np.median(np.abs(ratio)) < 0.12


def test_a_derived_backward_pass_of_a_gpu_that_it_was_never_tried_on():
    """FlashAttention-2's on an H100, of its forward pass's constants there: nothing is fitted to a backward one."""
    table = tables.load("torch-h100")
    mask = table.operations.among(Op.ATTENTION_BACKWARD) & (np.char.find(table.software.astype(str), "flash") >= 0)
    rows = table.select(mask)
    derived = load_efficiency("hopper").by_program("torch-flash").model_copy(update={"backward": None})
    ratio = backward_times(load_gpu("h100"), derived, rows.operations)[0] * 1e6 / rows.time_us - 1
    assert len(ratio) == 60
    assert np.median(np.abs(ratio)) < 0.25
    assert np.quantile(np.abs(ratio), 0.9) < 0.35


@pytest.mark.slow(seconds=3.5)
def test_whole_models_under_tensorrt_llm():
    """Models that the stack was not fitted to, batches whose cache fits; every third run."""
    table, stack = tables.load("llm-inference-bench-a100"), STACKS["tensorrt-llm"]
    o, gpu = table.operations, load_gpu("a100-40gb")
    mask = (table.software == "TensorRT-LLM") & np.isin(table.model, ("llama3-8b", "mistral-7b", "llama3-70b"))
    mask &= o.batch * table.input_tokens < 32 * 1024
    errors = []
    for i in np.flatnonzero(mask)[::3].tolist():
        run = predict_run(
            gpu,
            str(table.model[i]),
            batch=int(o.batch[i]),
            prompt=int(table.input_tokens[i]),
            output=int(table.output_tokens[i]),
            tensor=int(o.gpus[i]),
        )
        errors.append(run.seconds(stack) / (table.time_us[i] * 1e-6) - 1)
    assert len(errors) >= 25
    assert np.median(np.abs(errors)) < 0.15


def test_a_run_is_its_prompt_and_its_tokens():
    gpu = load_gpu("a100")
    run = predict_run(gpu, "llama2-7b", batch=2, prompt=64, output=1)
    assert run.contexts == (65,)
    assert run.seconds() == run.prompt.kernels_s + run.tokens[0].kernels_s
    longer = predict_run(gpu, "llama2-7b", batch=2, prompt=64, output=300)
    assert longer.tokens[0].kernels_s < longer.token_seconds() < longer.tokens[-1].kernels_s
    stack = STACKS["vllm"]
    assert stack.sequence > 0
    assert longer.seconds(stack) == pytest.approx(longer.seconds() + 301 * (stack.step + 2 * stack.sequence))


def test_tensor_parallel_steps_share_the_work_and_add_sums():
    steps = [predict_step(load_gpu("h100"), "llama3-8b", "decode", tokens=512, tensor=t) for t in (1, 2)]
    assert steps[1].kernels > steps[0].kernels
    assert steps[0].kernels_s / 2 < steps[1].kernels_s < steps[0].kernels_s


@given(
    sequences=st.integers(1, 512),
    tensor=st.sampled_from([1, 2, 8]),
    times=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    launched=st.integers(0, 2000),
)
def test_a_stack_says_of_steps_in_a_row_what_it_says_of_each(sequences, tensor, times, launched):
    for stack in (*STACKS.values(), Stack("made", 1e-3, 1e-6, sequence=2e-5, shared=5e-4)):
        each = [stack.seconds(t, launched, sequences, tensor) for t in times]
        assert stack.step_seconds(np.array(times), launched, sequences, tensor).tolist() == each
        more = stack.seconds(times[0], launched, sequences + 1, tensor) - each[0]
        assert more == pytest.approx(stack.sequence, abs=1e-12)
    shared = Stack("made", 0.0, 0.0, shared=5e-4)
    assert shared.seconds(1.0, 0, 1, 2) - shared.seconds(1.0, 0, 1, 1) == pytest.approx(5e-4)


def test_a_host_that_launches_slowly_sets_the_pace():
    stack = find_stack("TensorRT-LLM")
    assert stack.seconds(1.0, 100) == 1.0 + stack.step
    assert stack.seconds(0.0, 100) == 100 * stack.kernel + stack.step
    with pytest.raises(LoomError, match="did you mean 'vllm'"):
        find_stack("vlm")


@pytest.mark.slow(seconds=12)
@pytest.mark.checkout
def test_the_stacks_are_those_that_the_fit_finds():
    from benchmarks import gpu_models

    found, stated = gpu_models.fit_stack("TensorRT-LLM"), STACKS["tensorrt-llm"]
    assert (found.step, found.kernel) == pytest.approx((stated.step, stated.kernel))


@pytest.mark.slow(seconds=1)
def test_no_measured_row_is_above_the_library_gpus():
    limits = {name: load_gpu(name) for name in gpu_names()}
    limits |= {card: limits[name] for card, name in CARDS.items()}
    for table in tables.all_tables():
        validate(table, limits)


def test_measured_times_are_found_by_their_work():
    table = tables.load("aiconfigurator-gemm-a100")
    row = table.operations.select([0])
    (found,) = measured("a100", row)
    assert found is not None
    assert found.seconds == pytest.approx(table.time_us[0] * 1e-6, rel=found.spread + 1e-9)
    assert any("aiconfigurator-gemm-a100" in source for source in found.sources)
    assert measured("a100", make_operations([{"op": "gemm", "m": 7, "n": 11, "k": 13}])) == [None]


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_constants_are_complete_and_say_what_they_rest_on(name):
    found = load_efficiency(name)
    assert found.architecture == name
    assert found.measured == ("not measured" not in found.basis)
    assert found.error.gemm >= (0.01 if found.measured else 0.2)


def test_what_a_relative_does_not_state_is_inherited():
    base, heir = load_efficiency("ampere"), load_efficiency("cdna3")
    assert heir.gemm.mainloop != base.gemm.mainloop
    assert heir.gemm.model_copy(update={"mainloop": base.gemm.mainloop}) == base.gemm
    assert heir.prefill == base.prefill


def test_a_constant_outside_its_range_is_refused(tmp_path, monkeypatch):
    data = yaml.safe_load((FOLDER / "ampere.yaml").read_text())
    data["prefill"]["mainloop"] = 1.5
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(data))
    monkeypatch.setattr(efficiency, "FOLDER", tmp_path)
    with pytest.raises(LoomError, match=r"prefill.mainloop"):
        efficiency.load_efficiency("odd")


def test_every_library_gpu_has_constants():
    for name in gpu_names():
        gpu = load_gpu(name)
        assert load_efficiency(gpu.architecture).architecture == gpu.architecture

"""GPUs on the command line: ``loom gpu``, ``loom compare``, ``loom sim`` of GPUs and systems of them."""

import json

import pytest

from siliconloom.cli import main

HEADER = "op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,causal,dtype,gpus,bytes"
OPS = f"""{HEADER}
gemm,4096,4096,4096,,,,,,,,bf16,,
gemm,1,4096,4096,,,,,,,,,,
attention_prefill,,,,2,1024,,32,8,128,true,bf16,,
attention_decode,,,,16,,2048,32,8,128,,bf16,,
all_reduce,,,,,,,,,,,bf16,8,1048576
all_to_all,,,,,,,,,,,bf16,4,1048576
"""
SMALL = ("--set", "workload.layers=2", "--set", "workload.sequence=64")


@pytest.fixture
def ops(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_text(OPS)
    return str(path)


def loom(capsys, *arguments):
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def loom_json(capsys, *arguments):
    status, out, err = loom(capsys, *arguments, "--json", "-")
    assert status == 0, err
    return json.loads(out)


def test_gpu_predicts_a_row_for_each_operation(capsys, ops):
    result = loom_json(capsys, "gpu", "H100", ops)
    assert set(result) == {"schema", "version", "gpu", "basis", "clock", "measured", "rows"}
    assert (result["schema"], result["gpu"]) == ("siliconloom.gpu/1", "h100")
    assert len(result["rows"]) == OPS.count("\n") - 1
    for row in result["rows"]:
        assert set(row) == {"time_us", "bound", "roofline_us", "energy_j", "error", "error_90", "nearby"}
        assert row["time_us"] >= row["roofline_us"] >= 0
        assert row["energy_j"] > 0
        assert 0 < row["error"] <= row["error_90"]
    assert result["rows"][0]["bound"] == "compute"
    assert result["rows"][1]["bound"] in ("memory", "launch")


def test_gpu_answers_what_is_asked(capsys, ops):
    burst, sustained = (loom_json(capsys, "gpu", "h200", ops, *more)["rows"] for more in ((), ("--sustained",)))
    assert all(b["time_us"] <= s["time_us"] for b, s in zip(burst, sustained, strict=True))
    slower = loom_json(capsys, "gpu", "h100", ops, "--set", "clock=1 GHz")["rows"]
    assert slower[0]["time_us"] > loom_json(capsys, "gpu", "h100", ops)["rows"][0]["time_us"]
    written, unwritten = (
        loom_json(capsys, "gpu", "h100", ops, flag)["rows"][2]["time_us"]
        for flag in ("--cache-write", "--no-cache-write")
    )
    assert unwritten < written


def test_other_software_has_other_kernels(capsys, ops):
    def rows(*more):
        return loom_json(capsys, "gpu", "h100", ops, *more)["rows"]

    usual, sglang, other = rows(), rows("--software", "sglang"), rows("--software", "other")
    assert sglang[3]["time_us"] != usual[3]["time_us"]
    assert sglang[3]["nearby"]
    assert other[3]["error_90"] > max(usual[3]["error_90"], sglang[3]["error_90"])
    assert not other[3]["nearby"]
    status, out, err = loom(capsys, "gpu", "h100", ops, "--software", "sglan", "--json", "-")
    assert (status, out) == (2, "")
    assert "did you mean 'sglang'?" in err


def test_products_whose_rows_do_not_begin_at_16_bytes_are_told(capsys, tmp_path):
    path = tmp_path / "odd.csv"
    for sizes, told in (("64,777,2048", True), ("64,2048,777", True), ("777,64,2048", False), ("64,784,2048", False)):
        path.write_text(f"op,m,n,k\ngemm,{sizes}\n")
        assert ("off 16 bytes" in loom_json(capsys, "gpu", "h100", str(path))["measured"]) == told


def test_a_gpu_of_which_nothing_was_measured_says_so(capsys, ops):
    found = loom_json(capsys, "gpu", "l40s", ops)
    assert "outside of what was measured" in found["measured"]
    assert "attention_decode" in found["measured"]
    assert "all_to_all" in loom_json(capsys, "gpu", "h100", ops)["measured"]
    step = loom_json(capsys, "sim", "l40s", "gpt2", *SMALL)
    assert step["measured_share"] == 0.0
    assert any("outside of what was measured" in note for note in step["notes"])
    _, out, _ = loom(capsys, "sim", "l40s", "gpt2", *SMALL)
    assert "outside of what was measured" in next(line for line in out.splitlines() if line.startswith("  time"))


def test_gpu_alone_says_what_it_is(capsys):
    found = loom_json(capsys, "gpu", "h100")
    assert found["peak_flops"]["bf16"] == pytest.approx(989.4e12, rel=1e-3)
    assert found["memory_bandwidth"] == 3352e9
    assert found["measured"]
    status, out, _ = loom(capsys, "gpu", "mi300x")
    assert status == 0
    assert "not measured" in out


@pytest.mark.slow(seconds=1)
def test_tables_of_gpus_fit_a_terminal(capsys, ops):
    for arguments in (
        ["gpu", "a100", ops],
        ["gpu", "a100"],
        ["compare", "npu-edge-int8", "gpt2", "--gpu", "h100", *SMALL],
    ):
        status, out, _ = loom(capsys, *arguments)
        assert status == 0
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(
    ("csv", "gpu", "said"),
    [
        (OPS, "hh100", "did you mean 'h100'?"),
        (OPS, "nothing-like-it", "known: a10, a100, "),
        (OPS.replace("bf16", "fp8"), "a100", "a100: no units for fp8; it has "),
        (OPS, "v100", "v100: no units for bf16; it has fp16"),
        (OPS.replace("gemm,4096", "gemm,-4096"), "h100", "ops.csv:2:6: m: must not be negative (got '-4096')"),
        (OPS.replace("gemm,4096", "gemm,nan"), "h100", "m: must be a whole number (got 'nan')"),
        (OPS.replace("gemm,4096", "gemm,0"), "h100", "m: must be at least 1"),
        (OPS.replace("gemm,1,", "gem,1,"), "h100", "did you mean 'gemm'?"),
        (OPS.replace("head_dim", "head_dims"), "h100", "did you mean 'head_dim'?"),
        (OPS.replace(",32,8,128,true", ",32,7,128,true"), "h100", "must be a multiple of kv_heads"),
        (OPS.replace(",8,1048576", ",1,1048576"), "h100", "needs at least 2 GPUs"),
        (OPS.replace(",128,true", ",1024,true"), "h100", "heads of 1024"),
        (HEADER + "\n", "h100", "there are no rows"),
        ("", "h100", "the file is empty"),
    ],
)
def test_bad_operations_are_refused_in_one_line(capsys, tmp_path, csv, gpu, said):
    path = tmp_path / "ops.csv"
    path.write_text(csv)
    status, out, err = loom(capsys, "gpu", gpu, str(path), "--json", "-")
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.slow(seconds=1)
def test_compare_puts_machines_side_by_side(capsys):
    prices = ("--price", "h100=3", "--price", "NPU-edge-int8=0.5")
    result = loom_json(capsys, "compare", "npu-edge-int8", "gpt2", "--gpu", "H100,a100", *SMALL, *prices)
    assert result["schema"] == "siliconloom.compare/2"
    ours, *theirs = result["machines"]
    assert [ours["name"], *(m["name"] for m in theirs)] == ["npu-edge-int8", "h100", "a100"]
    assert {"seconds", "error", "energy_j", "power_w", "utilization", "achieved", "tokens_per_second"} <= set(ours)
    for machine in theirs:
        assert machine["seconds"] >= machine["roofline_s"] > 0
        assert machine["speedup"] == pytest.approx(machine["seconds"] / ours["seconds"])
        low, high = machine["speedup_range"]
        assert low < machine["speedup"] < high
    assert ours["dollars_per_million_tokens"] == pytest.approx(0.5 / ours["tokens_per_second"] / 3600 * 1e6)
    assert theirs[1]["dollars_per_million_tokens"] is None
    for operator in result["operators"]:
        found = operator["machines"]
        assert found["npu-edge-int8"]["source"] == "simulated"
        assert found["h100"] is None or found["h100"]["source"] == "modelled"
    kernels = sum(o["machines"]["h100"]["seconds"] for o in result["operators"] if o["machines"]["h100"])
    assert kernels + theirs[0]["overhead_s"] == pytest.approx(theirs[0]["seconds"])


@pytest.mark.slow(seconds=1)
def test_compare_counts_the_serving_stack_and_the_gpus(capsys):
    def gpu(*more):
        decode = ("--set", "workload.phase=decode", "--set", "workload.layers=2")
        return loom_json(capsys, "compare", "npu-datacenter", "llama3-8b", "--gpu", "h100", *decode, *more)["machines"][
            1
        ]

    alone, served, shared = gpu(), gpu("--stack", "vllm"), gpu("--tensor", "2")
    assert served["seconds"] > alone["seconds"]
    assert served["overhead_s"] > 0
    assert shared["count"] == 2
    assert shared["seconds"] < alone["seconds"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gpu", "hh100"], "did you mean 'h100'?"),
        (["--gpu", "h100,h100"], "each machine once"),
        (["--gpu", "h100", "--price", "hh100=3"], "'hh100' is not compared here; did you mean 'h100'?"),
        (["--gpu", "h100", "--price", "h100"], "must look like NAME=DOLLARS_PER_HOUR"),
        (["--gpu", "h100", "--price", "h100=-1"], "must look like NAME=DOLLARS_PER_HOUR"),
        (["--gpu", "h100", "--price", "h100=nan"], "must look like NAME=DOLLARS_PER_HOUR"),
        (["--gpu", "h100", "--stack", "vlm"], "did you mean 'vllm'?"),
        (["--gpu", "h100", "--tensor", "7"], "7"),
    ],
)
def test_bad_comparisons_are_refused_in_one_line(capsys, more, said):
    status, out, err = loom(capsys, "compare", "npu-edge-int8", "gpt2", *SMALL, *more, "--json", "-")
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_model_that_does_not_fit_says_how_many_it_takes(capsys):
    status, out, err = loom(capsys, "compare", "npu-datacenter", "llama3-70b", "--gpu", "h100", "--json", "-")
    assert (status, out) == (2, "")
    assert "try --tensor 2" in err
    status, out, err = loom(capsys, "sim", "h100", "llama3-70b", "--json", "-")
    assert (status, out) == (2, "")
    assert "does not fit" in err
    assert "it takes 2" in err


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_sim_takes_gpus_and_systems_of_them(capsys, phase):
    sets = ("--set", f"workload.phase={phase}", "--set", "workload.batch=8")
    alone = loom_json(capsys, "sim", "h100", "llama3-8b", *sets)
    eight = loom_json(capsys, "sim", "dgx-h100", "llama3-8b", *sets)
    assert alone["schema"] == "siliconloom.result/2"
    for result in (alone, eight):
        assert {"seconds", "cycles", "macs", "utilization", "energy_j", "bound", "operators", "memory"} <= set(result)
        assert 0 < result["bound"]["achieved"] <= 1
        assert 0 < result["utilization"] <= 1
    assert (alone["system"]["chips"], eight["system"]["chips"]) == (1, 8)
    assert alone["seconds"] / 8 < eight["seconds"] < alone["seconds"]
    assert any(o["kind"] == "all_reduce" for o in eight["operators"])
    assert not any(o["kind"] == "all_reduce" for o in alone["operators"])
    status, out, _ = loom(capsys, "sim", "dgx-a100", "llama3-8b", *sets)
    assert status == 0
    assert "predicted" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sim", "h100", "gpt2", "--set", "plan.tensor=2"], "2 chips, h100 has 1"),
        (["sim", "h100", "gpt2", "--exact"], "--exact for GPUs"),
        (["sim", "h100", "gpt2", "--trace", "t.json", "--window", "1:2"], "--window"),
        (["sim", "h100", "gpt2", "--set", "clok=1 GHz"], "clock"),
        (["sim", "dgx-h100", "gpt2", "--set", "policy.tensor=16"], "8"),
    ],
)
def test_bad_simulations_of_gpus_are_refused(capsys, arguments, said):
    status, _, err = loom(capsys, *arguments)
    assert status == 2
    assert said in err


def test_the_library_and_the_schema_have_gpus(capsys):
    names = loom_json(capsys, "list")["gpus"]
    asked = {"v100", "a100", "h100", "h200", "h800", "b200", "l40s", "l20", "a40", "a10", "rtx-4090", "mi210", "mi300x"}
    assert asked <= set(names)
    status, out, _ = loom(capsys, "schema", "gpu")
    assert status == 0
    assert {"multiprocessors", "matrix", "memory", "link"} <= set(json.loads(out)["properties"])


@pytest.mark.parametrize(
    "keys",
    [
        {"phase": "prefill", "batch": "8"},
        {"phase": "decode", "batch": "8"},
        {"phase": "training", "batch": "8"},
        {"phase": "prefill", "batch": "2", "context": "4"},
        {"phase": "prefill", "batch": "8", "microbatch": "2"},
        {"phase": "training", "batch": "8", "microbatch": "2"},
    ],
)
def test_the_operators_of_a_step_without_stages_are_all_of_its_time(capsys, keys):
    """All parts of the batch, shared attention and the optimizer included."""
    sets = [f"workload.{key}={keys[key]}" for key in ("phase", "batch")] + ["workload.layers=4"]
    sets += [f"plan.{key}={value}" for key, value in keys.items() if key in ("context", "microbatch")]
    options = [option for each in [*sets, "plan.tensor=2"] for option in ("--set", each)]
    found = loom_json(capsys, "sim", "dgx-h100", "llama3-8b", *options)
    left_out = 0.0 if keys["phase"] != "training" else 0.02 * found["seconds"]  # gradients of a pipeline's passes
    assert sum(o["seconds"] for o in found["operators"]) == pytest.approx(found["seconds"], rel=1e-6, abs=left_out)


EXPERTS = {"phase": "decode", "batch": "5", "layers": "2"}


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("mixtral-8x7b", EXPERTS),
        ("mixtral-8x7b", EXPERTS | {"expert_popularity": "chance"}),
        ("mixtral-8x7b", EXPERTS | {"expert_popularity": "1.0"}),
        ("deepseek-v3", {"layers": "4", "sequence": "300"}),
        ("deepseek-v3", {"layers": "4", "sequence": "256", "phase": "training"}),
    ],
)
@pytest.mark.parametrize("gpu", ["h200", "a100"])
def test_operators_add_up_to_the_work_of_a_step(capsys, gpu, model, keys):
    """Experts' rows where they do not divide, and values that are narrower than keys, are counted as they are."""
    sets = [f"workload.{key}={value}" for key, value in keys.items()] + ["memory.capacity=1TiB"]
    found = loom_json(capsys, "sim", gpu, model, *(option for each in sets for option in ("--set", each)))
    assert sum(o.get("macs", 0) for o in found["operators"]) == found["macs"]
    peak = 989.4e12 if gpu == "h200" else 312e12
    for each in found["operators"]:
        if "attention" in each["kind"]:  # arithmetic alone binds it, of the pairs that the mask leaves
            assert each["roofline_s"] == pytest.approx(2 * each["macs"] / peak, rel=1e-3) or keys.get("phase")


def test_values_narrower_than_keys_take_less_energy_and_unfused_products_of_their_own_width(capsys):
    sets = ["workload.layers=1", "workload.sequence=512", "memory.capacity=1TiB"]
    options = [option for each in sets for option in ("--set", each)]
    narrow = loom_json(capsys, "sim", "h200", "deepseek-v3", *options)
    wide = loom_json(capsys, "sim", "h200", "deepseek-v3", *options, "--set", "workload.model.v_head_dim=192")
    rows = [next(o for o in each["operators"] if "attention" in o["kind"]) for each in (narrow, wide)]
    assert [row["seconds"] for row in rows] == [rows[0]["seconds"]] * 2  # the kernel's, which is as wide as its keys
    assert rows[0]["roofline_s"] == pytest.approx(rows[1]["roofline_s"] * 320 / 384)
    assert rows[0]["energy_j"] < rows[1]["energy_j"]
    training = [*options, "--set", "workload.phase=training", "--set", "plan.attention=unfused"]
    unfused = loom_json(capsys, "sim", "h200", "deepseek-v3", *training)["operators"]
    products = [o["shape"] for o in unfused if o["name"].endswith(".attention") and o["kind"] == "gemm"]
    assert [(shape["k"], shape["n"]) for shape in products] == [(192, 512), (512, 128)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sim", "dgx-h100", "gpt2", "--set", "plan.tensor=4", "--set", "plan.overlap=any"], "loom plan try all"),
        (
            ["compare", "h100", "gpt2", "--gpu", "a100", "--stack", "vllm", "--set", "workload.phase=training"],
            "it serves prompts and tokens",
        ),
        (
            [
                "plan",
                "dgx-h100",
                "gpt2",
                "--set",
                "workload.phase=training",
                "--set",
                "plan.pipeline=1",
                "--set",
                "plan.chunks=2",
            ],
            "a pipeline of one stage has nothing to interleave",
        ),
    ],
)
def test_what_one_step_cannot_mean_is_refused(capsys, arguments, said):
    status, _, err = loom(capsys, *arguments)
    assert status == 2
    assert said in err


def test_gpus_beside_gpus_say_how_their_times_were_found(capsys):
    found = loom_json(capsys, "compare", "dgx-h100", "gpt2-block-gemms", "--gpu", "h100", "--set", "plan.tensor=1")
    assert any("predicted by the GPU model" in note for note in found["notes"])
    assert found["machines"][1]["seconds"] == found["machines"][0]["seconds"]


@pytest.mark.slow(seconds=1)
def test_what_is_known_of_a_gpu_s_model_is_said_beside_other_chips(capsys):
    found = loom_json(capsys, "compare", "npu-edge-int8", "gpt2", "--gpu", "mi300x", *SMALL)
    assert any(note.startswith("mi300x: ") for note in found["notes"])


@pytest.mark.parametrize("keys", ["overlap=tokens", "overlap=ladder", "overlap=nano", "overlap=tiles"])
def test_what_passes_beside_kernels_is_no_part_of_their_bound(capsys, keys):
    """Times of kernels and messages one after the other bind only a step that has them so."""
    sets = ["workload.layers=4", "workload.sequence=4096", "workload.batch=4", "plan.microbatch=4", "plan.tensor=8"]
    options = [option for each in sets for option in ("--set", each)]
    line = loom_json(capsys, "sim", "dgx-h100", "llama3-70b", *options)["bound"]
    beside = loom_json(capsys, "sim", "dgx-h100", "llama3-70b", *options, "--set", f"plan.{keys}")["bound"]
    assert beside["lower_bound_s"] < line["lower_bound_s"]
    assert beside["achieved"] <= 1


def test_attention_on_other_gpus_is_no_part_of_a_worker_s_bound(capsys):
    sets = ["plan.tensor=1", "plan.attention_chips=7", "workload.batch=16", "workload.sequence=16384"]
    options = [option for each in sets for option in ("--set", each)]
    found = loom_json(capsys, "sim", "dgx-h100", "llama3-8b", *options)
    # 2 FLOP a multiply-accumulate at the peak of all eight: nothing else binds
    assert found["bound"]["lower_bound_s"] == pytest.approx(found["utilization"] * found["seconds"])

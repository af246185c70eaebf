"""Served by measured operators: the run that a real server had, and what cannot be asked."""

import csv
import gzip
import json
import shutil

import numpy as np
import pytest

from siliconloom.baselines.profile_tables import PROFILES
from siliconloom.baselines.tables import DATA
from siliconloom.cli import main

RUN = DATA / "served" / "rtx-pro-6000-llama3-8b.csv.gz"
ASKED = ("serve", "rtx-pro-6000", "llama3-8b", str(RUN), "--set", "serve.max_sequences=128")
FITTED = 100
"""First requests of the run, to which ``vllm-async`` is fitted."""


def served(capsys, *more):
    assert main([*ASKED, *more, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *asked):
    assert main(["serve", *asked, "--json", "-"]) == 2
    text = capsys.readouterr().err
    assert len(text.strip().splitlines()) == 1
    return text


def measured():
    with gzip.open(RUN, "rt") as file:
        rows = list(csv.DictReader(file))
    column = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
    arrival = column["arrival_time"] + (column["queued_ts"] - column["arrival_time"]).min()
    further = (column["last_token_ts"] - column["first_token_ts"]) / (column["output_toks"] - 1)
    return column["first_token_ts"] - arrival, further, column["last_token_ts"] - arrival


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize(("more", "of_token", "of_first"), [(("--profile", "measured"), 0.02, 0.06), ((), 0.055, 0.15)])
def test_a_real_server_s_run_is_met(more, of_token, of_first, capsys, tmp_path):
    """Mean times of 300 requests: by measured operators, and by the GPU model, to which nothing here was fitted."""
    path = tmp_path / "r.csv"
    result = served(capsys, "--stack", "vllm-async", "--csv", str(path), *more)
    first, further, whole = measured()
    assert result["tpot_s"]["mean"] == pytest.approx(further.mean(), rel=of_token)
    assert result["ttft_s"]["mean"] == pytest.approx(first.mean(), rel=of_first)
    assert result["e2e_s"]["mean"] == pytest.approx(whole.mean(), rel=of_token + 0.005)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    ours = np.array([float(row["tpot_s"]) for row in rows])[FITTED:]
    assert ours.mean() == pytest.approx(further[FITTED:].mean(), rel=of_token)
    if more:  # request by request, too
        assert np.median(np.abs(ours / further[FITTED:] - 1)) < 0.04


def test_energy_of_measured_operators_is_not_known(capsys):
    result = served(capsys, "--profile", "measured", "--set", "serve.price=2")
    assert result["asked"]["profile"] == "rtx-pro-6000-llama3-8b-tp1"
    assert [result[name] for name in ("energy_j", "power_w", "joules_per_token")] == [None] * 3
    assert result["cost"]["electricity_usd"] is None
    assert result["cost"]["usd"] == result["cost"]["chips_usd"] > 0
    assert any("not known" in note for note in result["notes"])
    assert main([*ASKED, "--profile", "measured"]) == 0
    assert "not known" in capsys.readouterr().out


def test_a_folder_of_one_s_own_is_read(capsys, tmp_path):
    """A copy says the same; one whose products take twice the time, more."""
    name = "rtx-pro-6000-llama3-8b-tp1"
    shutil.copytree(PROFILES / name, tmp_path / name)
    few = ("--set", "serve.requests=20")
    ours, copied = (served(capsys, *few, "--profile", p) for p in ("measured", str(tmp_path / name)))
    assert ours["tpot_s"] == copied["tpot_s"]
    slow = tmp_path / "slow"
    shutil.copytree(PROFILES / name, slow)
    lines = gzip.decompress((slow / "dense.csv.gz").read_bytes()).decode().splitlines()
    doubled = [lines[0], *(f"{k},{2 * float(t)}" for k, _, t in (line.rpartition(",") for line in lines[1:]))]
    (slow / "dense.csv.gz").unlink()
    (slow / "dense.csv").write_text("\n".join(doubled) + "\n")
    assert served(capsys, *few, "--profile", str(slow))["tpot_s"]["mean"] > 1.5 * ours["tpot_s"]["mean"]


def test_two_gpus_have_their_own_tables_and_messages(capsys, tmp_path):
    system = tmp_path / "two.yaml"
    system.write_text(
        "{kind: system, name: two, chips: [{chip: rtx-pro-6000, count: 2}], topology: {kind: ring}, "
        "link: {bandwidth: 64 GB/s, latency: 1 us}, policy: {tensor: 2}}\n"
    )
    asked = [str(system), "qwen3-32b", "256x64", "--set", "serve.requests=20", "--set", "plan.tensor=2"]
    assert main(["serve", *asked, "--profile", "measured", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["asked"]["profile"] == "rtx-pro-6000-qwen3-32b-tp2"
    assert any("messages between GPUs are predicted" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("h100", "llama3-8b", "9x9"), "no profile of 1 h100; there are rtx-pro-6000-"),
        (("npu-datacenter", "llama3-8b", "9x9"), "profiles are of GPUs"),
        (("rtx-pro-6000", "gpt2", "9x9", "--set", "workload.precision=bf16"), "no profile of gpt2"),
        (("rtx-pro-6000", "llama3-8b", "9x9", "--set", "workload.precision=fp8"), "timed in bf16"),
        (("rtx-pro-6000", "llama3-8b", "9x9", "--set", "workload.cache_precision=fp8"), "kept as they are"),
        (("rtx-pro-6000", "llama3-8b", "9x9", "--set", "serve.token_budget=4096"), "at most 2,048 tokens were timed"),
        (("rtx-pro-6000", "llama3-8b", "9x9", "--set", "serve.batching=static"), "serve.batching static"),
    ],
)
def test_what_no_profile_says_is_refused(asked, said, capsys):
    assert said in refused(capsys, *asked, "--set", "serve.requests=9", "--profile", "measured")


def test_a_profile_of_another_machine_is_refused(capsys):
    folder = str(PROFILES / "rtx-pro-6000-llama3-8b-tp2")
    text = refused(capsys, *ASKED[1:], "--profile", folder)
    assert "is of 2 rtx-pro-6000, a replica is 1 rtx-pro-6000 (plan.tensor)" in text
    assert "no profile.yaml there" in refused(capsys, *ASKED[1:], "--profile", "/nowhere")

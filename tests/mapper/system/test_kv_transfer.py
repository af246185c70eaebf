"""The cache between plans of prompts and of next tokens: every byte counted one by one."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from siliconloom.arch import load_system
from siliconloom.cli import app
from siliconloom.evaluate.cluster import cluster_of
from siliconloom.mapper.system.kv_transfer import share_of, transfer_cache
from siliconloom.mapper.system.plan import Plan

HEADS, SEQUENCES, LAYERS, TOKENS = 4, 8, 8, 8
SIDES = (1, 2, 4, 8)
SHAPES = [(d, t, c, 8 // (d * t * c)) for d in SIDES for t in SIDES for c in SIDES if 8 % (d * t * c) == 0]


def run_of(part, parts, length):
    """One of so many equal runs."""
    return slice(part * length // parts, (part + 1) * length // parts)


def heads_of(tensor, plan):
    """A chip's heads; with fewer heads than chips, several have the same one."""
    if plan.tensor <= HEADS:
        return run_of(tensor, plan.tensor, HEADS)
    head = tensor // (plan.tensor // HEADS)
    return slice(head, head + 1)


def held(plan):
    """Cells (sequence, layer, head, token) of every chip, one by one."""
    found = []
    for rank in range(plan.workers):
        tensor, rest = rank % plan.tensor, rank // plan.tensor
        context, rest = rest % plan.context, rest // plan.context
        data, stage = rest % plan.data, rest // plan.data
        cells = np.zeros((SEQUENCES, LAYERS, HEADS, TOKENS), bool)
        sequences, layers = run_of(data, plan.data, SEQUENCES), run_of(stage, plan.pipeline, LAYERS)
        cells[sequences, layers, heads_of(tensor, plan), run_of(context, plan.context, TOKENS)] = True
        found.append(cells)
    return found


def plan(shape):
    data, tensor, context, pipeline = shape
    return Plan(data=data, tensor=tensor, context=context, pipeline=pipeline)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES))
def test_every_chip_gets_what_it_needs_and_has_not(before, after):
    cluster = cluster_of(load_system("dgx-h100"))
    plans = plan(before), plan(after)
    shares = [share_of(p, [LAYERS // p.pipeline] * p.pipeline, HEADS) for p in plans]
    cells = SEQUENCES * LAYERS * HEADS * TOKENS
    found = transfer_cache(*shares, float(cells), cluster.fabrics[0], cluster.places)
    have, need = held(plans[0]), held(plans[1])
    missing = [int((n & ~h).sum()) for n, h in zip(need, have, strict=True)]
    assert found.sent.sum(axis=0) == pytest.approx(missing)
    for a in range(8):
        for b in range(8):
            if a != b and not (have[a] & need[b]).any():
                assert found.sent[a, b] == 0
    assert (found.seconds > 0) == (sum(missing) > 0)


def test_the_command_hands_the_cache_over(tmp_path):
    target = tmp_path / "plan.json"
    sets = ["workload.batch=8", "workload.sequence=512", "plan.tensor=2", "plan.pipeline=1", "decode.tensor=8"]
    arguments = [a for s in sets for a in ("--set", s)]
    done = CliRunner().invoke(app, ["plan", "dgx-h100", "llama3-8b", *arguments, "--json", str(target)])
    assert done.exit_code == 0, done.output
    found = json.loads(target.read_text())["decode"]
    assert found["plan"]["tensor"] == 8
    assert 0 < found["moved_bytes"] < found["cache_bytes"]
    assert found["kv_transfer_s"] >= found["moved_bytes"] / 8 / 450e9
    done = CliRunner().invoke(
        app, ["plan", "dgx-h100", "gpt2", "--set", "workload.phase=decode", "--set", "decode.data=2"]
    )
    assert "decode. follows prompts" in str(done.exception)

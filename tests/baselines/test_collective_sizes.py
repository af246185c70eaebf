"""NCCL's collectives by size: the protocol its tuner chooses, the model's error at every size, measured curves."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.system import load_system
from siliconloom.baselines import collective as nccl
from siliconloom.baselines import tables
from siliconloom.baselines.families import split
from siliconloom.baselines.interpolation import ADDS, curve
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.operations import COLLECTIVES, Op
from siliconloom.baselines.predict import predict
from siliconloom.cli import app
from siliconloom.evaluate.collective import collective_result

GROUPS = [(gpu, op, n) for gpu in ("a100", "h100") for op in COLLECTIVES for n in (2, 8)]
groups = st.sampled_from([*GROUPS, ("a100", Op.ALL_REDUCE, 4)])
MIB = 2**20


def chosen(gpu, gpus, size, *, all_reduce, adds=False):
    """Protocol and the largest size of each one up to ``size``."""
    described, last = load_gpu(gpu), np.zeros(4)
    most = nccl.LL_MOST.get(described.architecture, nccl.LL_MOST_ELSE)
    around = 2.0 if all_reduce else 1.0
    rings = nccl.RINGS * described.link_bandwidth
    return nccl.protocol(float(gpus), float(size), around, 1.0, rings, most, adds, nccl.TUNER, last), last


def measured_growth(gpu, op, gpus, size):
    """Time of twice the size over that of the size."""
    known = curve(gpu, op, gpus)
    return known.at(2.0 * size) / known.at(float(size))


@pytest.mark.parametrize(
    ("gpu", "op", "gpus", "size", "before", "after"),
    [
        ("a100", Op.ALL_REDUCE, 2, MIB // 2, nccl.LL, nccl.SIMPLE),
        ("a100", Op.ALL_GATHER, 2, MIB, nccl.LL, nccl.SIMPLE),
        ("h100", Op.ALL_REDUCE, 2, MIB, nccl.LL, nccl.SIMPLE),
        ("h100", Op.ALL_REDUCE, 8, MIB, nccl.LL, nccl.NVLS),
        ("a100", Op.ALL_GATHER, 8, 8 * MIB, nccl.LL128, nccl.SIMPLE),
        ("h100", Op.ALL_GATHER, 8, 16 * MIB, nccl.LL128, nccl.SIMPLE),
    ],
)
def test_the_tuner_changes_where_measured_times_jump(gpu, op, gpus, size, before, after):
    options = {"all_reduce": op is Op.ALL_REDUCE, "adds": op is Op.ALL_REDUCE and load_gpu(gpu).link.in_switch}
    assert chosen(gpu, gpus, size, **options)[0] == before
    assert chosen(gpu, gpus, 2 * size, **options)[0] == after
    around = [measured_growth(gpu, op, gpus, s) for s in (size / 2, 2 * size)]
    assert measured_growth(gpu, op, gpus, size) > max(around)


@given(
    st.sampled_from(["v100", "a100", "h100", "b200"]),
    st.integers(2, 64),
    st.integers(1, 2**34),
    st.booleans(),
    st.booleans(),
)
def test_the_protocol_is_the_tuners_cheapest_and_sizes_ascend(gpu, gpus, size, all_reduce, adds):
    found, last = chosen(gpu, gpus, size, all_reduce=all_reduce, adds=adds)
    described, steps = load_gpu(gpu), (2 if all_reduce else 1) * (gpus - 1)
    rates = nccl.RINGS * described.link_bandwidth * nccl.TUNER[:, 3]
    rates[nccl.LL] = min(rates[nccl.LL], nccl.LL_MOST.get(described.architecture, nccl.LL_MOST_ELSE))
    cost = nccl.TUNER[:, 0] + steps * nccl.TUNER[:, 1] + steps / gpus * size / rates
    assert cost[found] <= cost[: 4 if adds else 3].min() * (1 + 1e-9)
    assert last[found] == size
    used = last[last > 0]
    assert list(used) == sorted(used)
    assert not last[found + 1 :].any()


def errors(gpu, op, gpus):
    table = tables.load("aiconfigurator-collectives")
    o = table.operations
    keep = (table.gpu == gpu) & o.among(op) & (o.gpus == gpus) & (o.bytes >= 1024) & (o.element_bytes() == 2)
    table = table.select(keep & np.char.startswith(table.software.astype(str), "NCCL"))
    found = predict(load_gpu(gpu), table.operations).seconds * 1e6 / table.time_us - 1
    return np.abs(found), bool(split(table)[1][0])


def test_the_model_at_every_size_from_a_kibibyte():
    by = {group: errors(*group) for group in GROUPS}
    for group, (found, unseen) in by.items():
        alltoall = group[1] is Op.ALL_TO_ALL
        assert np.median(found) < (0.13 if alltoall else 0.06 if unseen else 0.025), group
    unseen = np.concatenate([found for found, held in by.values() if held])
    assert len(unseen) == 160
    assert np.median(unseen) < 0.06
    assert (unseen <= 0.10).mean() >= 0.7


@given(groups, st.data())
def test_a_curve_goes_through_what_was_measured_and_no_further(group, data):
    known = curve(*group)
    i = data.draw(st.integers(0, len(known.size) - 2))
    assert known.at(known.size[i]) == pytest.approx(known.seconds[i])
    ends = sorted(known.seconds[i : i + 2])
    between = known.at(data.draw(st.floats(known.size[i], known.size[i + 1])))
    assert ends[0] * (1 - 1e-12) <= between <= ends[1] * (1 + 1e-12)
    assert known.at(known.size[0] - 1) is None
    assert known.at(known.size[-1] + 1) is None


def test_a_curve_has_the_tables_rows():
    known, table = curve("h100", Op.ALL_REDUCE, 8), tables.load("aiconfigurator-collectives")
    o = table.operations
    keep = (table.gpu == "h100") & o.among(Op.ALL_REDUCE) & (o.gpus == 8) & (o.element_bytes() == 2)
    table = table.select(keep & (table.software == "NCCL 2.29.2"))
    assert dict(zip(known.size, known.seconds, strict=True)) == pytest.approx(
        dict(zip(table.operations.bytes.tolist(), (table.time_us * 1e-6).tolist(), strict=True))
    )
    assert known.sources == ("aiconfigurator-collectives (NCCL 2.29.2)",)
    assert curve("a100", Op.ALL_REDUCE, 4).sources == ("vidur-allreduce-a100",)
    assert curve("h100", Op.ALL_REDUCE, 4) is None


@given(groups.filter(lambda g: g[1] is not Op.ALL_TO_ALL and g[2] != 4), st.floats(1024, 2**28))
def test_more_bytes_take_no_less_up_to_noise(group, size):
    known = curve(*group)
    assert known.at(2 * size) >= 0.92 * known.at(size)


def test_a_size_left_out_is_found_from_its_neighbours():
    """Neighbours are then four times apart, twice as far as when nothing is left out."""
    found = {group: np.abs(curve(*group).left_out()) for group in GROUPS}
    assert np.median(np.concatenate(list(found.values()))) < 0.04
    assert max(np.median(each) for each in found.values()) < 0.08


def run(*arguments):
    return CliRunner().invoke(app, ["collective", *arguments, "--json", "-"])


def test_the_command_answers_as_measured_and_names_it():
    known = curve("h100", Op.ALL_GATHER, 8)
    found = json.loads(run("dgx-h100", "all_gather", "100 KB").stdout)
    assert found["time_s"] == pytest.approx(known.at(100e3))
    assert found["model"] == "NCCL, measured: aiconfigurator-collectives (NCCL 2.29.2)"
    assert found["measured"]["between"] == [65536, 131072]
    row = {"op": "all_gather", "gpus": 8, "bytes": 100_000, "dtype": "fp16"}
    assert found["predicted_s"] == pytest.approx(float(predict(load_gpu("h100"), make_operations([row])).seconds[0]))
    alone = json.loads(run("dgx-h100", "all_gather", "100 KB", "--predicted").stdout)
    assert (alone["model"], alone["measured"]) == ("NCCL, fitted to measurements", None)
    assert alone["time_s"] == alone["predicted_s"] == found["predicted_s"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("dgx-h100", "all_reduce", "64 KiB", "--chips", "4"),
        ("dgx-h100", "all_reduce", "2 GiB"),
        ("dgx-h100", "all_reduce", "64 KiB", "--set", "link.bandwidth=20 GB/s"),
        ("dgx-h100x8", "all_reduce", "64 KiB"),
    ],
)
def test_what_nobody_measured_is_predicted(arguments):
    found = json.loads(run(*arguments).stdout)
    assert found["model"] == "NCCL, fitted to measurements"
    assert found["time_s"] == found["predicted_s"]
    assert found["measured"] is None


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["dgx-a100", "dgx-h100"]), st.sampled_from(COLLECTIVES), st.integers(1, 2**29), st.integers(2, 8)
)
def test_no_answer_is_below_its_bound(name, op, size, chips):
    found = collective_result(load_system(name), str(op), float(size), chips)
    assert found["time_s"] >= found["lower_bound_s"] * (1 - 1e-9)
    measured = curve(name.removeprefix("dgx-"), op, chips)
    assert (found["measured"] is not None) == (measured is not None and measured.at(size) is not None)


def test_sums_are_those_of_sixteen_bits_and_copies_of_any_format():
    for gpu, op, n in GROUPS:
        assert (curve(gpu, op, n).spread > 0) == (op not in ADDS)

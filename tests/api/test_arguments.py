"""Arguments of other types than are declared: refused by name, and never by whatever meets them first."""

import numpy as np
import pytest

import siliconloom as sl

STEP = ("npu-edge-int8", "gpt2-block-gemms")


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: sl.simulate(*STEP, objective=3), "objective: must be text"),
        (lambda: sl.simulate(*STEP, placement=[]), "placement: must be text"),
        (lambda: sl.simulate(*STEP, search_time="1"), "search_time: must be a number"),
        (lambda: sl.simulate(*STEP, search=True, seed="a"), "seed: must be a whole number"),
        (lambda: sl.simulate(*STEP, search=True, seed=-1), "seed: a whole number from 0 on"),
        (lambda: sl.simulate(*STEP, exact="no"), "exact: must be true or false"),
        (lambda: sl.simulate(None, "gpt2"), "machine: must be"),
        (lambda: sl.simulate(STEP[0], 3), "workload: must be"),
        (lambda: sl.simulate(*STEP, {"tile.array.rows": None, "x": object()}), "sets: x: must be"),
        (lambda: sl.compare(*STEP, "h100", prices=3), "prices: must be a mapping"),
        (lambda: sl.compare(*STEP, "h100", tensor=True), "tensor: must be a whole number"),
        (lambda: sl.verify("systolic-ws-8", seed="x"), "seed: must be a whole number"),
        (lambda: sl.verify("systolic-ws-8", cases="3"), "cases: must be a whole number"),
        (lambda: sl.verify("systolic-ws-8", cases=-1), "cases"),
        (lambda: sl.generate_rtl("systolic-ws-8", 3), "folder: must be text or a path"),
        (lambda: sl.sweep(None), "description: must be text or a path or a mapping"),
        (lambda: sl.sweep({}, workers="2"), "workers: must be a whole number"),
        (lambda: sl.sweep({}, results=3), "results: must be text or a path"),
        (lambda: sl.simulate("x" * 5000, "gpt2"), "x"),
    ],
)
def test_what_is_of_another_type_is_refused(ask, text):
    with pytest.raises(sl.LoomError) as caught:
        ask()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow(seconds=1)
def test_whole_numbers_of_numpy_are_numbers():
    ours = sl.simulate(*STEP, {"tile.vector.lanes": np.int64(32)})
    assert ours.seconds == sl.simulate(*STEP, {"tile.vector.lanes": 32}).seconds

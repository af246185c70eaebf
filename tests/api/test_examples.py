"""Examples in the docstrings of the public functions run, and print what stands there."""

import doctest
import inspect
import shutil

import pytest

import siliconloom as sl

FUNCTIONS = [name for name in sl.__all__ if inspect.isfunction(getattr(sl, name))]


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_example_prints_what_stands_there(name):
    if name == "verify" and shutil.which("iverilog") is None:
        pytest.skip("Icarus is not installed")
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(sl, name), name, module=False, globs={})
    assert found.examples, f"{name} has no example"
    told = []
    done = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE).run(found, out=told.append)
    assert (done.attempted, done.failed) == (len(found.examples), 0), "".join(told)


@pytest.mark.slow(seconds=1)
def test_progress_is_told_on_standard_error_and_changes_nothing(monkeypatch):
    """Each function that may take long hands its watcher on."""
    from siliconloom.render import tables

    told = []

    class Heard(tables.Terminal):
        def share(self, text):
            told.append(text)
            return super().share(text)

    monkeypatch.setattr(tables, "Terminal", Heard)
    step = "npu-edge-int8", "gpt2", {"workload.layers": 1, "workload.sequence": 16}
    assert sl.simulate(*step, progress=True).cycles == sl.simulate(*step).cycles
    sl.serve("h100", "llama3-8b", "64x8", {"serve.requests": 4}, progress=True)
    sl.plan("dgx-h100", "llama3-8b", {"workload.batch": 8}, progress=True)
    assert {"mapping and simulating", "serving", "searching"} <= set(told)


def test_a_service_by_measured_operators_is_that_of_the_command():
    with pytest.raises(sl.LoomError, match=r"^profile measured: no profile of 1 h100"):
        sl.serve("h100", "llama3-8b", "64x8", {"serve.requests": 4}, profile="measured")
    found = sl.serve("rtx-pro-6000", "llama3-8b", "64x8", {"serve.requests": 4}, profile="measured")
    assert found["asked"]["profile"] is not None
    assert found["energy_j"] is None

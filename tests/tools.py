"""Tools that tests need, and that not every machine has."""

import importlib.util

import pytest


def need_yosys():
    """Skip a test where pyosys is not installed.

    Without loading it: it runs in processes of its own, and in one with matplotlib that draws nothing any more, as both
    are bound to Python by other versions of the same library.
    """
    if importlib.util.find_spec("pyosys") is None:
        pytest.skip("pyosys is not installed")

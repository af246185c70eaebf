"""What several files of circuits' tests share."""

import gc

import pytest
from amaranth._unused import MustUse


@pytest.fixture(scope="module")
def quiet_circuits():
    """Circuits that are dropped before they are part of a design are no mistake; Amaranth warns when they are freed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MustUse, "_MustUse__silence", True)
        yield
        gc.collect()

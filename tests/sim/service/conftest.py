"""Every step of every replica is checked: no block is lost while requests run, either."""

import pytest

from siliconloom.sim.service.replica import Replica


@pytest.fixture(autouse=True)
def checked_steps(monkeypatch):
    """Blocks of all running requests, counted one by one, are those that the pool misses after each step."""
    advance = Replica.advance

    def checked(replica, until, *, alone=True):
        advance(replica, until, alone=alone)
        replica.check()

    monkeypatch.setattr(Replica, "advance", checked)

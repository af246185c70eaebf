"""Every test of sweeps begins in a folder with the small machine and its workload."""

import pytest

from tests.sweeps.small import write


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path

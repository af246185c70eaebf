from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siliconloom.workloads import Graph, load_workload


@pytest.fixture
def load_config(tmp_path: Path) -> Callable[..., Graph]:
    """Write a configuration as a bare `config.json` and load it; further arguments are overrides."""

    def load(config: dict[str, Any], *overrides: tuple[str, str]) -> Graph:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config, indent=2))
        return load_workload(str(path), list(overrides))

    return load


@pytest.fixture
def load_text(tmp_path: Path) -> Callable[..., Graph]:
    """Write a YAML description and load it; further arguments are overrides."""

    def load(text: str, *overrides: tuple[str, str]) -> Graph:
        path = tmp_path / "workload.yaml"
        path.write_text(text)
        return load_workload(str(path), list(overrides))

    return load

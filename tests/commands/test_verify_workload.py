"""``loom verify CHIP WORKLOAD``: what it refuses, and how."""

import pytest

from siliconloom.cli import main

PRODUCTS = "kind: gemms\nprecision: int8\ngemms:\n  - {name: a, m: 4, n: 4, k: 4}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["npu-edge-int8", "list.yaml", "--cases", "3"], "--cases: of random work"),
        (["npu-edge-int8", "list.yaml", "--cases", "3", "--programs", "2"], "--cases and --programs: of random work"),
        (["npu-edge-int8", "--mapping", "map.yaml"], "--mapping is of a workload"),
        (["npu-x4-ring", "list.yaml"], "not supported: RTL of a workload on a system (npu-x4-ring)"),
        (["npu-edge-int8", "list.yaml", "--set", "tile_count=2"], "not supported: RTL of list on 2 tiles (tile_count)"),
        (
            ["npu-edge-int8", "list.yaml", "--set", "memory.dram.access_bytes=32"],
            "not supported: RTL of an npu tile whose memory.access_bytes (32) are fewer than tile.dma.bytes_per_cycle",
        ),
        (["npu-edge-int8", "list.yaml", "--json", "list.yaml"], "is an input of this command"),
        (["npu-edge-int8", "nosuch"], "nosuch: no such file"),
    ],
)
def test_what_cannot_be_verified_is_refused_in_one_line(arguments, told, tmp_path, monkeypatch, capsys):
    (tmp_path / "list.yaml").write_text(PRODUCTS)
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *arguments]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "list.yaml").read_text() == PRODUCTS

"""A class's name means one thing: none of this package is defined twice."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("arch", "workloads", "rtl", "sim", "mapper", "baselines", "src/siliconloom")


def test_no_two_classes_share_a_name():
    found = defaultdict(list)
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            inside = path.relative_to(ROOT / room)
            if room == "src/siliconloom" and f"{inside.parts[0]}" in ROOMS:  # a link to a room
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}

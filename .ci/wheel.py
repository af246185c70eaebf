"""Whether a wheel holds the package, whole and as it stands here: ``python .ci/wheel.py WHEEL``.

Every file under ``src/siliconloom`` must be in the wheel byte for byte, and nothing else but the wheel's own records:
tests of the checkout are then tests of the wheel as far as the content of the package goes.
"""

import os
import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"


def main(wheel: str) -> int:
    """Name what differs; 1 if anything does."""
    here = {}
    for folder, inner, names in os.walk(SOURCE / "siliconloom", followlinks=True):
        inner[:] = [name for name in inner if name != "__pycache__"]
        for path in (Path(folder) / name for name in names):
            here[path.relative_to(SOURCE).as_posix()] = path.read_bytes()
    with zipfile.ZipFile(wheel) as packed:
        there = {name: packed.read(name) for name in packed.namelist() if ".dist-info/" not in name}
    wrong = [
        *(f"{name} is not in the wheel" for name in here.keys() - there.keys()),
        *(f"{name} is in the wheel only" for name in there.keys() - here.keys()),
        *(f"{name} is another one in the wheel" for name in here.keys() & there.keys() if here[name] != there[name]),
    ]
    for line in sorted(wrong):
        print(line, file=sys.stderr)
    print(f"{len(here)} files of the package, {len(wrong)} of them not as in the wheel")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

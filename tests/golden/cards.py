"""Writes the errors that a published figure's explained rows and bounds are held to.

``python -m tests.golden.cards`` derives every card and writes `reproduce/expected.csv`; the commit that does so says
which rows moved, and why. `tests/reproduce/test_reproduce.py` holds the rows to it.
"""

from __future__ import annotations

import csv
import io

from siliconloom.reproduce import CARDS
from siliconloom.reproduce.run import EXPECTED, expected_errors, load_card


def write() -> None:
    """Derive every card and keep the errors of the rows that no tolerance holds; prints what moved."""
    before = expected_errors() if EXPECTED.exists() else {}
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(("card", "row", "error"))
    for name in sorted(CARDS):
        for row in load_card(name).rows:
            if not row.pinned:
                continue
            assert row.error is not None
            out.writerow((name, row.name, f"{row.error:.4f}"))
            if row.verdict == "moved":
                print(f"{name}: {row.name}: {before.get((name, row.name))} -> {row.error:.4f}")
    EXPECTED.write_text(text.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    write()

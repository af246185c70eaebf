"""What ``loom reproduce`` does: derive cards, show each when it is there, keep what is done when interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from siliconloom.arch.errors import CheckFailed
from siliconloom.render.output import write_json
from siliconloom.render.tables import console
from siliconloom.reproduce.run import broken, card_tables, check_cards, derive, gathered


def reproduce_and_print(names: Sequence[str], json_file: str | None) -> None:
    """Derive the named cards, or all of them.

    Raises
    ------
    CheckFailed
        When a row does not hold.
    KeyboardInterrupt
        When interrupted, after the cards that are done were written.
    """
    chosen = check_cards(names)
    done: list[dict[str, Any]] = []
    interrupted = False
    try:
        for card in derive(chosen):
            done.append(card)
            if json_file != "-":
                out = console()
                if len(done) > 1:
                    out.print()
                card_tables(card, out)
                out.file.flush()
    except KeyboardInterrupt:
        interrupted = True
        if not done and json_file != "-":
            console().print(f"interrupted before the first of {len(chosen)} cards was derived: nothing to show")
    result = gathered(chosen, done, interrupted=interrupted)
    if json_file is not None:
        write_json(json_file, result)
    if interrupted:
        raise KeyboardInterrupt
    wrong = broken(result)
    if wrong:
        raise CheckFailed(f"{len(wrong)} rows do not hold, the first: {wrong[0]}")

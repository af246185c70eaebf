"""Cases of a parametrised test, most of which take their turn among the slow ones."""

from collections.abc import Iterable
from typing import Any

import pytest


def in_turn(cases: Iterable[Any], every: int) -> list[Any]:
    """The first of every so many cases as they are; the others are marked slow, so a part of them runs each day."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*value, marks=() if number % every == 0 else pytest.mark.slow)
        for number, value in enumerate(values)
    ]

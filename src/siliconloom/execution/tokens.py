"""Tokens that a model is run on: numbers that somebody gave, or random ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError

Integers = NDArray[np.int64]
NUMBERS = re.compile(r"[\s,]*\d+([\s,]+\d+)*[\s,]*", re.ASCII)
NUMBER_LIKE = re.compile(r"[\s\d,.eE+-]*\d[\s\d,.eE+-]*")
MOST_DIGITS = 12
"""Digits of a token's number, at most."""


def read_tokens(given: str) -> Integers:
    """Numbers as they are written, with commas or blanks between them, or those of a file: shape (tokens,).

    Raises
    ------
    LoomError
        When it is neither.
    """
    text, name = given, "--tokens"
    if not given.strip(" ,"):
        raise LoomError(f"{name}: no tokens are given (got {given!r})")
    if NUMBER_LIKE.fullmatch(given) and not NUMBERS.fullmatch(given) and not Path(given).exists():
        raise LoomError(f"{name} {given}: tokens are whole numbers from 0, with commas or blanks between them")
    if not NUMBERS.fullmatch(given):
        name = f"--tokens {given}"
        try:
            text = Path(given).read_text("utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "is no text"
            raise LoomError(
                f"{name}: {reason}; tokens are numbers with commas between them, or a file of such"
            ) from None
    if not NUMBERS.fullmatch(text):
        raise LoomError(f"{name}: tokens are numbers with commas or blanks between them")
    numbers = re.findall(r"\d+", text)
    if any(len(number) > MOST_DIGITS for number in numbers):
        raise LoomError(f"{name}: a token has at most {MOST_DIGITS} digits")
    return np.array([int(number) for number in numbers], np.int64)


def random_tokens(seed: int, batch: int, length: int, vocabulary: int) -> Integers:
    """Tokens of which each is as likely as any other: shape (batch, length)."""
    return np.random.default_rng(seed).integers(0, vocabulary, (batch, length))


def arranged(tokens: Integers, name: str, batch: int, length: int) -> Integers:
    """Tokens by sequence; raises `LoomError` where there are more or fewer than a workload has."""
    if len(tokens) != batch * length:
        each = f"{length} tokens" if batch == 1 else f"{batch} sequences of {length} tokens"
        raise LoomError(f"--tokens: {name} takes {each} (got {len(tokens)})")
    return tokens.reshape(batch, length)


__all__ = ["arranged", "random_tokens", "read_tokens"]

"""What a generated text has shown, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from siliconloom.execution.generation import GeneratedStep, TileText
from siliconloom.models.tokenizer import Tokenizer

TEXT_SCHEMA = "siliconloom.text/1"


def text_record(
    tile: TileText,
    steps: Sequence[GeneratedStep],
    tokenizer: Tokenizer,
    *,
    prompt: Sequence[int],
    prompt_text: str,
    real: Sequence[int],
    weights: str,
    figures: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """A text under its versioned schema.

    Parameters
    ----------
    steps
        One for the prompt, then one for every token; where two of them take the prompt the first has made no word.
    prompt, prompt_text
        What the model went on from, and its text.
    real
        Tokens that float32 has made behind the same prompt.
    figures
        What each step takes on the described chip.
    """
    taken, own = 0, list[int]()
    for step in steps:
        taken += step.tokens.shape[1]
        if taken >= len(prompt):
            own.append(step.token)
    last = steps[-1].mapped
    apart = next((at for at, (a, b) in enumerate(zip(own, real, strict=False)) if a != b), None)
    if apart is None and len(own) != len(real):
        apart = min(len(own), len(real))
    return {
        "schema": TEXT_SCHEMA,
        "workload": last.graph.name,
        "precision": last.graph.formats,
        "weights": weights,
        "notes": [*last.graph.notes, *last.notes],
        "prompt": prompt_text,
        "prompt_tokens": list(prompt),
        "tokens": own,
        "text": tokenizer.decode(own),
        "float32_tokens": list(real),
        "float32_text": tokenizer.decode(real),
        "first_difference": apart,
        "ended": bool(own) and own[-1] in tokenizer.ends,
        "memory_bytes": max(step.mapped.memory_bytes for step in steps),
        "differing": sum(step.differing for step in steps),
        "compared": sum(step.values for step in steps),
        "golden_s": [step.golden_s for step in steps],
        "seconds": tile.seconds,
        "steps": list(figures),
        "summary": summary_of(figures, len(own)),
        "rtl": [],
    }


def summary_of(steps: Sequence[Mapping[str, Any]], tokens: int) -> dict[str, float | None]:
    """Time to the first token and time per token, tokens a second, and energy of the prompt and of a token."""
    count = len(steps) - tokens + 1  # programs that take the prompt
    before, after = steps[:count], steps[count:]
    seconds = sum(step["seconds"] for step in after) / len(after) if after else None
    return {
        "time_to_first_token_s": sum(step["seconds"] for step in before),
        "time_per_token_s": seconds,
        "tokens_per_second": 1 / seconds if seconds else None,
        "prompt_energy_j": sum(step["energy_j"] for step in before),
        "energy_per_token_j": sum(step["energy_j"] for step in after) / len(after) if after else None,
    }


__all__ = ["TEXT_SCHEMA", "summary_of", "text_record"]

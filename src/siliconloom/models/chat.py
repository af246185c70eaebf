"""A question in the words that a model was trained on: its chat template, in Jinja."""

from __future__ import annotations

from typing import Any, NoReturn

from siliconloom.arch.errors import LoomError
from siliconloom.models.tokenizer import Tokenizer

MOST_TEXT = 2**20
"""Characters of a question in its template, at most."""


def asked_text(tokenizer: Tokenizer, prompt: str, system: str | None = None) -> tuple[str, bool]:
    """The text that a model goes on with, and whether a template made it.

    Parameters
    ----------
    prompt, system
        What the user says, and what is said before that; without it the template's own words.

    Raises
    ------
    LoomError
        For a template that breaks a rule or refuses the messages; for ``system`` without a template.
    """
    if tokenizer.template is None:
        if system is not None:
            raise LoomError("--system: the model has no chat template, so there is no place for it")
        return prompt, False
    before = [] if system is None else [{"role": "system", "content": system}]
    return _rendered(tokenizer, [*before, {"role": "user", "content": prompt}]), True


def _rendered(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(text: str) -> NoReturn:
        raise TemplateError(text)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    values: dict[str, Any] = {**tokenizer.names, "messages": messages, "add_generation_prompt": True}
    try:
        assert tokenizer.template is not None
        text = environment.from_string(tokenizer.template).render(values)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise LoomError(f"the model's chat template: {error}") from None
    if len(text) > MOST_TEXT:
        raise LoomError(f"the model's chat template makes {len(text):,} characters, more than {MOST_TEXT:,}")
    return text


__all__ = ["asked_text"]

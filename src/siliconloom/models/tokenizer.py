"""From text to token numbers and back: byte-level BPE of a GGUF file, or the tokenizer.json of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, field

from siliconloom.arch.errors import LoomError, NotSupported, nearest_name
from siliconloom.models.gguf import GgufFile, missing, read_gguf
from siliconloom.models.source import ModelSource, read_json

UNFINISHED = "\ufffd"
"""What stands for bytes that are no whole character yet."""
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that stand in a text as they are, of a GGUF file."""
CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
SPLITS = {"gpt-2": None, "smollm": None, "qwen2": QWEN2, "llama-bpe": LLAMA3}
"""By ``tokenizer.ggml.pre``: the pattern that cuts a text into pieces, where it is not GPT-2's."""


class Tokenizer(Struct, frozen=True):
    """A model's tokenizer.

    Parameters
    ----------
    made
        Of the package ``tokenizers``.
    ends
        Tokens that end a text.
    first
        The token that a text begins with, where it has one.
    names
        Texts of tokens by what a chat template calls them: ``bos_token``, ``eos_token``.
    template
        The chat template, where there is one.
    """

    made: Any
    ends: frozenset[int]
    first: int | None = None
    names: dict[str, str] = field(default_factory=dict)
    template: str | None = None

    def encode(self, text: str, *, templated: bool = False) -> list[int]:
        """Tokens of a text; one that a template has made has its first token already."""
        found: list[int] = list(self.made.encode(text, add_special_tokens=not templated).ids)
        if self.first is not None and not templated and found[:1] != [self.first]:
            return [self.first, *found]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without those that only control."""
        return str(self.made.decode(list(tokens), skip_special_tokens=True))


class TokenStream:
    """Text of tokens as they come: a character is there when its last byte is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.tokens, self.told = tokenizer, list[int](), 0

    def add(self, token: int) -> str:
        """What a token adds to the text."""
        self.tokens.append(token)
        text = self.tokenizer.decode(self.tokens)
        if text.endswith(UNFINISHED):
            return ""
        new, self.told = text[self.told :], len(text)
        return new

    def rest(self) -> str:
        """What is left at the end: bytes that became no character."""
        text = self.tokenizer.decode(self.tokens)
        new, self.told = text[self.told :], len(text)
        return new


def tokenizer_of(source: ModelSource) -> Tokenizer:
    """The tokenizer of a GGUF file or of a folder.

    Raises
    ------
    LoomError
        When it is not there, is damaged, or the package ``tokenizers`` is missing.
    NotSupported
        For tokenizers of other kinds.
    """
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        raise missing("tokenizers", "words of a model") from None
    return _folder(source) if source.is_folder else gguf_tokenizer(read_gguf(source.path))


# GGUF ----------------------------------------------------------------------------------------------------------------


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata."""
    from tokenizers import AddedToken, decoders, models
    from tokenizers import Tokenizer as Made

    kind, pre = file.metadata.get("tokenizer.ggml.model"), file.metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        what = "no tokenizer" if kind is None else f"the tokenizer {kind}"
        raise NotSupported(f"GGUF files with {what} ({file.path}); byte-level BPE (gpt2) is read")
    if pre not in SPLITS:
        near = nearest_name(str(pre), SPLITS)
        hint = f"; did you mean '{near}'?" if near else ""
        known = ", ".join(SPLITS)
        raise NotSupported(f"the pre-tokenizer {pre} ({file.path}); those that are read: {known}{hint}")
    texts, merges = (_texts(file, f"tokenizer.ggml.{key}") for key in ("tokens", "merges"))
    types = file.metadata.get("tokenizer.ggml.token_type", [1] * len(texts))
    if not isinstance(types, list) or len(types) != len(texts):
        raise LoomError(f"{file.path}: tokenizer.ggml.token_type must have a number for each of {len(texts):,} tokens")
    numbers = {text: number for number, text in enumerate(texts)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        made = Made(models.BPE(vocab=numbers, merges=pairs, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the package raises nothing narrower
        raise LoomError(f"{file.path}: its merges do not fit its tokens: {error}") from None
    made.pre_tokenizer, made.decoder = _split(pre), decoders.ByteLevel()
    for kinds, special in ((CONTROL, True), (USER_DEFINED, False)):
        found = [text for text, of in zip(texts, types, strict=True) if of == kinds]
        add = made.add_special_tokens if special else made.add_tokens
        add([AddedToken(text, special=special, normalized=False) for text in found])
    ends = {_number(file, f"{name}_token_id", len(texts)) for name in ("eos", "eot", "eom")} - {None}
    first = _number(file, "bos_token_id", len(texts))
    names = {"bos_token": "" if first is None else texts[first]}
    last = _number(file, "eos_token_id", len(texts))
    names["eos_token"] = "" if last is None else texts[last]
    begins = first if file.metadata.get("tokenizer.ggml.add_bos_token") is True else None
    template = file.metadata.get("tokenizer.chat_template")
    return Tokenizer(
        made,
        frozenset(e for e in ends if e is not None),
        begins,
        names,
        template if isinstance(template, str) else None,
    )


def _split(pre: str) -> Any:
    """What cuts a text into pieces, whose bytes are merged."""
    from tokenizers import Regex, pre_tokenizers

    pattern = SPLITS[pre]
    if pattern is not None:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return byte_level


def _texts(file: GgufFile, key: str) -> list[str]:
    found = file.metadata.get(key)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise LoomError(f"{file.path}: {key} must be a list of texts")
    return found


def _number(file: GgufFile, key: str, count: int) -> int | None:
    found = file.metadata.get(f"tokenizer.ggml.{key}")
    if found is not None and (type(found) is not int or not 0 <= found < count):
        raise LoomError(f"{file.path}: tokenizer.ggml.{key} must be one of {count:,} tokens (got {found})")
    return found


# Hugging Face --------------------------------------------------------------------------------------------------------


def _folder(source: ModelSource) -> Tokenizer:
    from tokenizers import Tokenizer as Made

    path = source.path / "tokenizer.json"
    if not path.is_file():
        raise LoomError(f"{source.path}: words of a model need a tokenizer.json, and there is none")
    try:
        made = Made.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise LoomError(f"{path}: no tokenizer that can be read: {error}") from None
    config, generation, more = (
        read_json(source.path / name) if (source.path / name).is_file() else {}
        for name in ("config.json", "generation_config.json", "tokenizer_config.json")
    )
    names = {key: _text(more.get(key)) for key in ("bos_token", "eos_token")}
    ends = [*_numbers(config.get("eos_token_id")), *_numbers(generation.get("eos_token_id"))]
    last = made.token_to_id(names["eos_token"]) if names["eos_token"] else None
    return Tokenizer(
        made,
        frozenset(ends if last is None else [*ends, last]),
        None,
        names,
        _template(source, more.get("chat_template")),
    )


def _template(source: ModelSource, found: Any) -> str | None:
    """The chat template: a file of its own, a text, or one of several by name."""
    path = source.path / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    if isinstance(found, list):
        named = [each for each in found if isinstance(each, dict) and each.get("name") == "default"]
        found = named[0].get("template") if named else None
    return found if isinstance(found, str) else None


def _text(found: Any) -> str:
    """A token's text, as it is or as an object with more about it."""
    found = found.get("content") if isinstance(found, dict) else found
    return found if isinstance(found, str) else ""


def _numbers(found: Any) -> Iterable[int]:
    return [each for each in (found if isinstance(found, list) else [found]) if type(each) is int]


__all__ = ["SPLITS", "TokenStream", "Tokenizer", "gguf_tokenizer", "tokenizer_of"]

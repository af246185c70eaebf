"""Reads the keys of a Hugging Face ``config.json``, with bounds, defaults and positions in every error."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

from siliconloom.arch.datatype import DataType
from siliconloom.arch.document import Document, Key
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.vector import VectorFunction
from siliconloom.workloads.architecture import GATED

MAX_SIZE = 2**24
MAX_LAYERS = 4096

ACTIVATIONS = {
    "gelu": VectorFunction.GELU,
    "gelu_fast": VectorFunction.GELU,
    "gelu_new": VectorFunction.GELU,
    "gelu_pytorch_tanh": VectorFunction.GELU,
    "quick_gelu": VectorFunction.GELU,
    "relu": VectorFunction.RELU,
    "silu": VectorFunction.SILU,
    "swish": VectorFunction.SILU,
}
_DTYPES = {
    "bfloat16": DataType.BF16,
    "float16": DataType.FP16,
    "float32": DataType.FP32,
    "float8_e4m3fn": DataType.FP8_E4M3,
    "float8_e5m2": DataType.FP8_E5M2,
}
ALIKE = 0.85
"""Likeness from which on a key is taken for another one, misspelt."""

# Keys of some families that look like keys of another one, and are ignored there rather than taken for a misspelling.
_LOOKALIKES = frozenset(
    {
        "_sliding_window_pattern",
        "head_dim",
        "intermediate_size",
        "intermediate_size_mlp",
        "moe_intermediate_size",
        "qk_head_dim",
        "sliding_window",
        "use_sliding_window",
        "v_head_dim",
    }
)


class Configuration:
    """Keys of one model's configuration; the names asked for are kept, to tell misspelt keys from unused ones.

    Parameters
    ----------
    document, path
        Where the configuration stands: errors point there.
    """

    def __init__(self, document: Document, path: tuple[Key, ...]) -> None:
        self.document, self.path = document, path
        here: Any = document.data
        for key in path:
            here = here[key]
        self.data: dict[str, Any] = here
        self._asked: set[str] = set()
        self._sections: dict[str, Configuration] = {}
        self.idle: dict[str, str] = {}
        """Keys that were asked for and that others made mean nothing, with the reason."""

    def error(self, rule: str, key: str | None = None, *, value: object = None, nearest: str | None = None) -> Any:
        """Make the error that points at ``key`` (raise it yourself)."""
        path = self.path if key is None else (*self.path, key)
        return self.document.error(rule, path, value=value, nearest=nearest)

    def section(self, key: str) -> Configuration:
        """Nested mapping under ``key``."""
        if not isinstance(self._value(key), dict):
            raise self.error(f"the key '{key}' must be a mapping of keys to values", key if key in self.data else None)
        return self._sections.setdefault(key, Configuration(self.document, (*self.path, key)))

    @property
    def sections(self) -> tuple[Configuration, ...]:
        """The configuration itself and those nested in it that were asked for."""
        return (self, *(each for section in self._sections.values() for each in section.sections))

    @property
    def asked(self) -> frozenset[str]:
        """Keys that were asked for, there or not."""
        return frozenset(self._asked)

    def has(self, key: str) -> bool:
        """Whether ``key`` is there and not null."""
        return self._value(key) is not None

    def required(self, *names: str, high: int = MAX_SIZE) -> int:
        """Whole number from 1 to ``high`` under the first of ``names`` that is there (others are its aliases)."""
        found = self.optional(*names, high=high)
        if found is None:
            near = self._misspelt(names)
            if near is not None:
                raise self.error(f"unknown key '{near}'", near, nearest=names[0])
            raise self.error(f"the key '{names[0]}' is missing")
        return found

    def integer(self, *names: str, default: int, low: int = 1, high: int = MAX_SIZE) -> int:
        """As `required`, with a default for a missing or null key."""
        found = self.optional(*names, low=low, high=high)
        return default if found is None else found

    def optional(self, *names: str, low: int = 1, high: int = MAX_SIZE) -> int | None:
        """As `required`, with ``None`` for a missing or null key."""
        for name in names:
            value = self._value(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise self.error("must be a whole number", name, value=value)
            if not low <= value <= high:
                raise self.error(f"must be from {low} to {high}", name, value=value)
            return value
        return None

    def given(self, key: str) -> bool:
        """Whether ``key`` is there, null or not."""
        self._asked.add(key)
        return key in self.data

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error("must be true or false", key, value=value)
        return value

    def fraction(self, key: str, default: float) -> float:
        """Number above 0 and up to 1."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            raise self.error("must be a number above 0 and up to 1", key, value=value)
        return float(value)

    def small(self, *names: str, default: float) -> float:
        """Number from 0 to 1 under the first of ``names`` that is there."""
        for name in names:
            value = self._value(name)
            if value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                raise self.error("must be a number from 0 to 1", name, value=value)
            return float(value)
        return default

    def factor(self, key: str) -> float:
        """Number above 0; 1 for a missing or null key."""
        value = self._value(key)
        if value is None:
            return 1.0
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e6:
            raise self.error("must be a number above 0 and under a million", key, value=value)
        return float(value)

    def integers(self, key: str) -> list[int]:
        """Whole numbers from 0 up, none when the key is missing or null."""
        value = self._value(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.error("must be a list of whole numbers", key)
        return value

    def names(self, key: str) -> list[str]:
        """Names in a list, none when the key is missing or null."""
        value = self._value(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error("must be a list of names", key)
        return value

    def layer_types(
        self, layers: int, known: tuple[str, ...] = ("full_attention", "sliding_attention")
    ) -> list[str] | None:
        """Attention of each layer, by one of the names ``known``; ``None`` when the key is missing."""
        value = self._value("layer_types")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers:
            raise self.error(f"must be a list of {layers} names, one for each layer", "layer_types")
        for item in value:
            if item not in known:
                raise self.error(f"must be made of {' and '.join(known)}", "layer_types", value=item)
        return value

    def activation(self, *names: str, default: str, gated: bool = False) -> VectorFunction:
        """Activation under the first of ``names`` that is there."""
        name = next((name for name in names if self._value(name) is not None), None)
        value = default if name is None else self.data[name]
        function = ACTIVATIONS.get(value) if isinstance(value, str) else None
        known = [key for key, own in ACTIVATIONS.items() if not gated or own in GATED]
        if function is None or (gated and function not in GATED):
            raise self.error(f"must be one of {', '.join(known)}", name, value=value)
        return function

    def dtype(self) -> DataType | None:
        """Format that the model is stored in (``dtype``, formerly ``torch_dtype``), where it is stated."""
        for name in ("dtype", "torch_dtype"):
            value = self._value(name)
            if value is None or value == "auto":
                continue
            if not isinstance(value, str) or value not in _DTYPES:
                near = nearest_name(str(value), _DTYPES)
                raise self.error(f"must be one of {', '.join(_DTYPES)}", name, value=value, nearest=near)
            return _DTYPES[value]
        return None

    def refuse_misspelt(self) -> None:
        """Raise for a key that was not asked for and comes very near to one that was, and is missing."""
        for key in (each for each in self.data if each not in self._asked):
            near = self._nearest_absent(str(key), self._asked)
            if near is not None:
                raise self.error(f"unknown key '{key}'", str(key), nearest=near)

    def _value(self, key: str) -> Any:
        self._asked.add(key)
        return self.data.get(key)

    def _misspelt(self, names: tuple[str, ...]) -> str | None:
        keys = (str(key) for key in self.data if key not in self._asked)
        return next((key for key in keys if self._nearest_absent(key, set(names)) is not None), None)

    def _nearest_absent(self, key: str, names: set[str]) -> str | None:
        """Name most like ``key`` among those that the configuration lacks, from 85 % similarity up."""
        if key in _LOOKALIKES:
            return None
        matchers = {name: SequenceMatcher(None, key, name) for name in sorted(names) if name not in self.data}
        likeness = {
            name: matcher.ratio()
            for name, matcher in matchers.items()
            if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE  # upper bounds, found sooner
        }
        best = max(likeness, key=likeness.__getitem__, default=None)
        return best if best is not None and likeness[best] >= ALIKE else None

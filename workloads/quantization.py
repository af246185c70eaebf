"""What ``quantization_config`` of a released model says of its weights, as a workload's ``precision`` would say it.

Read are weights that are codes beside 16-bit activations: GPTQ, AWQ, MXFP4 and the same of compressed-tensors. Where
activations are quantised, too (fp8, W8A8), attention and norms are not, which no ``precision`` says; such a file, and
any other, is refused with what it asks for, unless a ``precision`` is stated, which then is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from siliconloom.arch.document import Document, Key
from siliconloom.arch.errors import nearest_name
from siliconloom.workloads.precision import DEFAULT_GROUP, PrecisionName

METHODS = ("gptq", "awq", "mxfp4", "compressed-tensors")
KEY = "quantization_config"
BY_BITS = {4: PrecisionName.W4A16, 8: PrecisionName.W8A16}
NEVER_PACKED = ("*lm_head", "*embed*", "*router*", "*.gate", "*norm*", "head", "score", "classifier")
"""Modules whose weights are never packed here: those of these names may be left out, or not."""
ATTENTION = ("*self_attn", "*attention", "*attn")


ASKED = {
    "dynamic": "other bits for modules of some names",
    "modules_in_block_to_quantize": "some products of a layer alone",
    "lm_head": "a head that is packed, too",
    "kv_cache_scheme": "keys and values in fewer bits; state workload.cache_precision, and take the key out",
    "sparsity_config": "zeros among the weights; state workload.weight_sparsity, and take the key out",
}
"""Keys that say more of what is stored, with what they ask for; null, false and empty ones say nothing."""


class StoredWeights(NamedTuple):
    """How weights are packed, rows of a group, and whether only those of experts are."""

    precision: PrecisionName
    group: int | None
    experts_alone: bool


def stored_weights(document: Document, path: tuple[Key, ...]) -> StoredWeights | None:
    """What the configuration at ``path`` says; ``None`` where it says nothing.

    Raises
    ------
    DescriptionError
        For what cannot be said of a workload, with the key.
    """
    config: Any = document.data
    for key in path:
        config = config[key]
    stated = config.get(KEY)
    if stated is None:
        return None
    here = (*path, KEY)

    def refuse(rule: str, *keys: Key, value: object = None, near: str | None = None) -> Any:
        return document.error(f"not supported: {rule}", (*here, *keys), value=value, nearest=near)

    if not isinstance(stated, Mapping):
        raise refuse("quantisation that is not a mapping of keys to values", value=stated)
    method = stated.get("quant_method")
    if method not in METHODS:
        known = ", ".join(METHODS)
        rule = f"weights of other methods than {known} (quant_method); state workload.precision"
        near = nearest_name(str(method), METHODS) if method is not None else None
        raise refuse(rule, *(("quant_method",) if method is not None else ()), value=method, near=near)
    for asked, what in ASKED.items():
        if stated.get(asked):
            raise refuse(what, asked)
    spared = _spared(stated, method, refuse)
    if method == "mxfp4":
        return StoredWeights(PrecisionName.MXFP4, None, spared)
    where: tuple[Key, ...] = ("bits" if "bits" in stated else "w_bit",)
    if method == "compressed-tensors":
        bits, group, where = _of_groups(stated, refuse)
    else:
        bits = stated.get("bits", stated.get("w_bit"))
        group = stated.get("group_size", stated.get("q_group_size", DEFAULT_GROUP))
    if not isinstance(bits, int) or bits not in BY_BITS:
        raise refuse("codes of other sizes than 4 and 8 bits", *where, value=bits)
    if not isinstance(group, int) or isinstance(group, bool) or group < 2 or group & group - 1:
        raise refuse("groups of other numbers of rows than powers of two (group_size)", value=group)
    return StoredWeights(BY_BITS[bits], group, spared)


def _spared(stated: Mapping[str, Any], method: str, refuse: Any) -> bool:
    """Whether weights of attention stay as they are, so that only experts' are packed."""
    key = "ignore" if method == "compressed-tensors" else "modules_to_not_convert"
    names = stated.get(key) or ()
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise refuse("names of modules that are no list", key, value=names)
    others = [name for name in names if not any(fnmatchcase(name, each) for each in NEVER_PACKED)]
    attention = [name for name in others if any(fnmatchcase(name, each) for each in ATTENTION)]
    left = next((name for name in others if name not in attention), None)
    if left is None:
        left = next((name for name in attention if any(part.isdigit() for part in name.split("."))), None)
    if left is not None or (attention and method != "mxfp4"):
        raise refuse("modules whose weights stay as they are, of these", key, value=left or attention[0])
    return bool(attention)


def _of_groups(stated: Mapping[str, Any], refuse: Any) -> tuple[Any, Any, tuple[Key, ...]]:
    """Bits and rows of a group of the only group of layers."""
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise refuse("layers that are quantised in several ways, or in none (config_groups)", value=groups)
    ((name, made),) = groups.items()
    weights = made.get("weights") if isinstance(made, Mapping) else None
    if not isinstance(weights, Mapping) or weights.get("type", "int") != "int":
        raise refuse("codes that are no whole numbers", "config_groups", name)
    if made.get("targets", ["Linear"]) != ["Linear"]:
        raise refuse("some products of a layer alone", "config_groups", name, "targets", value=made["targets"])
    if made.get("input_activations") is not None:
        rule = "activations in fewer bits than attention and norms have; state workload.precision"
        raise refuse(rule, "config_groups", name, "input_activations")
    return weights.get("num_bits"), weights.get("group_size"), ("config_groups", name, "weights", "num_bits")


__all__ = ["KEY", "StoredWeights", "stored_weights"]

"""Reads a Hugging Face ``config.json``: picks the family by ``model_type``."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from siliconloom.arch.document import Document, Key
from siliconloom.arch.errors import nearest_name
from siliconloom.workloads import deepseek_family, gpt_family, llama_family
from siliconloom.workloads.architecture import Architecture
from siliconloom.workloads.configuration import Configuration

FAMILIES: dict[str, Callable[[Configuration], Architecture]] = {
    "bert": gpt_family.bert,
    "deepseek_v2": deepseek_family.deepseek_v2,
    "deepseek_v3": deepseek_family.deepseek_v3,
    "gemma": llama_family.gemma,
    "gemma2": llama_family.gemma2,
    "gemma3": llama_family.gemma3,
    "gemma3_text": llama_family.gemma3_text,
    "gpt2": gpt_family.gpt2,
    "llama": llama_family.llama,
    "mistral": llama_family.mistral,
    "mixtral": llama_family.mixtral,
    "opt": gpt_family.opt,
    "phi": gpt_family.phi,
    "phi3": llama_family.phi3,
    "qwen2": llama_family.qwen2,
    "qwen3": llama_family.qwen3,
    "qwen3_moe": llama_family.qwen3_moe,
    "roberta": gpt_family.roberta,
}

LATER = {
    "quantization_config": "weights stored in another format than that of the arithmetic; take the key out and set "
                           "workload.precision",
    "compression_config": "compressed weights; take the key out and set workload.precision",
    "peft_type": "adapters (LoRA)",
    "lora_*": "adapters (LoRA)",
    "*_lora": "adapters (LoRA)",
    "adapter*": "adapters (LoRA)",
}  # fmt: skip
"""Patterns of keys that change what a model computes and are not built, with what they ask for."""


def read_architecture(document: Document, path: tuple[Key, ...] = ()) -> Architecture:
    """Architecture of the configuration at ``path`` in ``document``.

    Keys that no architecture depends on (dropout, token ids) are ignored; a key that looks like a misspelling of a
    missing one is refused.

    Raises
    ------
    DescriptionError
        For an unknown ``model_type``, a missing key, a value out of bounds, sizes that do not fit together.
    """
    config = Configuration(document, path)
    if not config.has("model_type"):
        raise config.error(f"the key 'model_type' is missing; it must be one of {', '.join(FAMILIES)}")
    model_type = config.data["model_type"]
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        near = nearest_name(str(model_type), FAMILIES)
        raise config.error(f"must be one of {', '.join(FAMILIES)}", "model_type", value=model_type, nearest=near)
    for key in config.data:
        for pattern, what in LATER.items():
            if fnmatchcase(str(key), pattern) and config.has(str(key)):
                raise config.error(f"not supported: {what}", str(key))
    architecture = FAMILIES[model_type](config)
    config.refuse_misspelt()
    return architecture

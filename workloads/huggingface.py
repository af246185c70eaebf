"""Reads a Hugging Face ``config.json``: picks the family by ``model_type``."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib import import_module

from msgspec.structs import replace

from siliconloom.arch.document import Document, Key
from siliconloom.arch.errors import nearest_name
from siliconloom.workloads.architecture import Architecture, GroupedAttention
from siliconloom.workloads.configuration import Configuration
from siliconloom.workloads.quantization import KEY
from siliconloom.workloads.unread import refuse_unread

EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")
FAMILIES = {
    "deepseek": ("deepseek_v2", "deepseek_v3"),
    "encoder_decoder": ("t5", "whisper"),
    "gpt": ("bert", "gpt2", "opt", "phi", "roberta"),
    "hybrid": ("jamba", "qwen3_next"),
    "llama": (
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "llama",
        "mistral",
        "mixtral",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
    ),
    "experts": ("gpt_oss", "llama4", "llama4_text"),
    "mamba": ("mamba", "mamba2"),
    "neox": ("bloom", "falcon", "gpt_neox", "gptj"),
    "vision": ("vit",),
}
"""Functions of the file of each family, which is imported when a model is of it, by ``model_type``."""
MODELS = {name: family for family, names in FAMILIES.items() for name in names}

LATER = {
    "compression_config": "compressed weights; take the key out and set workload.precision",
    "peft_type": "adapters (LoRA)",
    "lora_*": "adapters (LoRA)",
    "*_lora": "adapters (LoRA)",
    "adapter*": "adapters (LoRA)",
}
"""Patterns of keys that change what a model computes and are not built, with what they ask for."""


def read_architecture(document: Document, path: tuple[Key, ...] = ()) -> Architecture:
    """Architecture of the configuration at ``path`` in ``document``.

    Keys that no architecture depends on (dropout, token ids) are ignored; a key that looks like a misspelling of a
    missing one is refused, and so is one that would change the computation of another family (`refuse_unread`).

    Raises
    ------
    DescriptionError
        For an unknown ``model_type``, a missing key, a value out of bounds, sizes that do not fit together.
    """
    config = Configuration(document, path)
    if not config.has("model_type"):
        raise config.error(f"the key 'model_type' is missing; it must be one of {', '.join(sorted(MODELS))}")
    model_type = config.data["model_type"]
    if not isinstance(model_type, str) or model_type not in MODELS:
        near = nearest_name(str(model_type), MODELS)
        raise config.error(f"must be one of {', '.join(sorted(MODELS))}", "model_type", value=model_type, nearest=near)
    config.has(KEY)  # is read where formats are (`quantization`)
    for key in config.data:
        for pattern, what in LATER.items():
            if fnmatchcase(str(key), pattern) and config.has(str(key)):
                raise config.error(f"not supported: {what}", str(key))
    family = import_module(f"siliconloom.workloads.{MODELS[model_type]}_family")
    architecture: Architecture = getattr(family, model_type)(config)
    architecture = replace(architecture, epsilon=config.small(*EPSILONS, default=architecture.epsilon))
    architecture = _masked(config, architecture)
    config.refuse_misspelt()
    for section in config.sections:
        refuse_unread(section, architecture)
    return architecture


def _masked(config: Configuration, model: Architecture) -> Architecture:
    """The model as ``is_causal`` says: of a decoder that has it false (gte-Qwen2) tokens see later ones, too."""
    key = "is_causal"
    if not config.has(key) or config.flag(key, True) == model.causal:
        return model
    kind = f"model type {model.model_type}"
    if not model.causal:
        raise config.error(f"{kind}: its tokens see later ones, too", key, value=True)
    plain = [isinstance(layer.attention, GroupedAttention) and layer.attention.chunk is None for layer in model.layers]
    if model.encoder is not None or not all(plain):
        raise config.error(f"not supported: {kind} without a causal mask", key, value=False)
    layers = (replace(layer, attention=replace(layer.attention, causal=False)) for layer in model.layers)
    return replace(model, layers=tuple(layers))

"""Encoders of images: ViT.

Defaults of missing keys are those of the configuration class in Hugging Face transformers; the sizes of the model
(width, layers, heads) must be there.
"""

from __future__ import annotations

from siliconloom.workloads.architecture import LAYER_NORM, Architecture, FeedForward, GroupedAttention, Layer, Patches
from siliconloom.workloads.configuration import MAX_LAYERS, Configuration
from siliconloom.workloads.llama_family import head_width

MAX_SIDE = 2**12
MAX_CHANNELS = 2**10
MAX_CLASSES = 2**20
ENDS = {"ViTForImageClassification": "a classifier", "ViTModel": "a pooler"}
"""What stands behind the last norm, by the name under ``architectures``."""


def vit(config: Configuration) -> Architecture:
    """ViT: patches of an image and a class token through an encoder (Dosovitskiy et al., arXiv:2010.11929).

    It ends in a classifier of the class token, or as ``ViTModel`` in BERT's pooler.
    """
    hidden = config.required("hidden_size")
    layers = config.required("num_hidden_layers", high=MAX_LAYERS)
    heads = config.required("num_attention_heads")
    patches = _patches(config)
    pooler = _pooler(config)
    layer = Layer(
        attention=GroupedAttention(
            heads=heads,
            kv_heads=heads,
            head_dim=head_width(config, hidden, heads),
            qkv_bias=config.flag("qkv_bias", True),
            output_bias=True,
            causal=False,
        ),
        feed_forward=FeedForward(
            intermediate=config.integer("intermediate_size", default=3072),
            gated=False,
            bias=True,
            activation=config.activation("hidden_act", default="gelu"),
        ),
        norm=LAYER_NORM,
    )
    length = patches.count + 1
    return Architecture(
        model_type="vit",
        vocabulary=0,
        hidden=hidden,
        embedding_width=hidden,
        layers=(layer,) * layers,
        positions=length,
        max_length=length,
        patches=patches,
        final_norm=LAYER_NORM,
        pooler=pooler,
        classes=0 if pooler else _classes(config),
        dtype=config.dtype(),
    )


def _patches(config: Configuration) -> Patches:
    side = config.integer("image_size", default=224, high=MAX_SIDE)
    patch = config.integer("patch_size", default=16, high=MAX_SIDE)
    if side % patch:
        key = "patch_size" if config.has("patch_size") else "image_size"
        raise config.error(f"patches of {patch} x {patch} pixels must fill an image of {side} x {side}", key)
    return Patches(image=side, patch=patch, channels=config.integer("num_channels", default=3, high=MAX_CHANNELS))


def _pooler(config: Configuration) -> bool:
    """Whether the model ends in a pooler and not in a classifier, as where no name is stated."""
    names = config.names("architectures")
    unknown = next((name for name in names if name not in ENDS), None)
    if unknown is not None or len(names) > 1:
        raise config.error(f"must be one of {', '.join(ENDS)}", "architectures", value=unknown)
    pooler = names == ["ViTModel"]
    if pooler:
        config.idle |= dict.fromkeys(("num_labels", "id2label"), "ViTModel has no classifier")
    return pooler


def _classes(config: Configuration) -> int:
    """Classes: as many as ``id2label`` names, or ``num_labels``; two where neither is there."""
    stated = config.optional("num_labels", high=MAX_CLASSES)
    if not config.has("id2label"):
        return 2 if stated is None else stated
    named = len(config.section("id2label").data)
    if not 1 <= named <= MAX_CLASSES:
        raise config.error(f"must name from 1 to {MAX_CLASSES} classes", "id2label")
    if stated not in (None, named):
        raise config.error(f"must be {named}, as many as id2label names", "num_labels", value=stated)
    return named

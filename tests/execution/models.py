"""Small models under Hugging Face's names, and what they compute, written down a second time."""

import json
import struct
from math import erf

import numpy as np
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.execution.walk import At
from siliconloom.workloads import load_workload

VOCABULARY = 43
POSITIONS = 40
ENCODERS = ("bert", "roberta")
PADDING = 1
"""Number of the token that fills up a sequence of RoBERTa."""
ROPE_BASE, EPSILON = 10000.0, 1e-5


SHAPES = (
    (4, 4, 4),
    (8, 8, 8),
    (16, 16, 16),
    (8, 16, 16),
    (16, 8, 8),
    (32, 4, 4),
    (4, 32, 4),
    (4, 16, 8),
    (8, 4, 16),
    (12, 20, 16),
    (7, 9, 4),
    (5, 3, 8),
)
"""Rows and columns of arrays, and lanes of vector units beside them."""
DATAFLOWS = ("weight_stationary", "input_stationary", "output_stationary")
"""Which operand, or whether the sums, stay in the array."""


SHARED = {"w4a4": "int4", "w8a8": "int8", "w16a16": "int16"}
"""Operands of arrays between elements in fp32, by what weights and activations are called."""


def drawn_models(shortest):
    """What examples of models on small tiles are drawn from, texts of at least so many tokens."""
    return {
        "family": st.sampled_from(["gpt2", "llama", "qwen2"]),
        "shape": st.sampled_from(SHAPES),
        "dataflow": st.sampled_from(DATAFLOWS),
        "bus": st.sampled_from([8, 16, 32]),
        "dim": st.sampled_from([8, 16, 10]),
        "length": st.integers(shortest, 18),
        "decode": st.booleans(),
        "dtype": st.sampled_from(["int8", "bf16", "w8a8"]),
        "seed": st.integers(0, 99),
    }


def chip_of(rows, cols, lanes, bus, load_rows=1, dataflow="weight_stationary", dtype="int8"):
    """A tile in a format; of `SHARED` it is between elements in fp32, which keeps weights whatever else."""
    shares = dtype in SHARED
    cols += dtype == "w4a4" and load_rows * cols % 2
    sets = {
        "tile.array.operands": f"[{SHARED.get(dtype, dtype)}]",
        "tile.array.dataflow": "weight_stationary" if shares else dataflow,
        "tile.array.rows": rows,
        "tile.array.cols": cols,
        "tile.array.load_rows": load_rows,
        "tile.scratchpad.capacity": "64 KiB",
        "tile.accumulator.capacity": "32 KiB",
        "tile.vector.lanes": lanes,
        "tile.dma.bytes_per_cycle": bus,
        "tile.dma.port_bytes": bus,
        "memory.dram.access_bytes": bus,
        "memory.dram.bandwidth": "25.6 GB/s",
        "memory.dram.latency": "30 ns",
    }
    if shares:
        sets |= {"tile.vector.format": "fp32", "tile.scratchpad.capacity": "256 KiB"}
    return load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()])


def config_of(family, heads, kv_heads, dim, layers, tied=True):
    """A configuration as transformers writes it; ``family`` is gpt2, llama, qwen2 or mixtral, of all of two experts.

    An encoder (bert, roberta) has fewer keys.
    """
    if family in ENCODERS:
        return {
            "model_type": family,
            "hidden_size": heads * dim,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "intermediate_size": 3 * dim,
            "max_position_embeddings": POSITIONS,
            "type_vocab_size": 2,
            "vocab_size": VOCABULARY,
        }
    if family == "gpt2":
        model = {"n_embd": heads * dim, "n_head": heads, "n_layer": layers, "n_positions": POSITIONS}
    else:
        model = {
            "hidden_size": heads * dim,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "num_hidden_layers": layers,
            "intermediate_size": 3 * dim,
            "max_position_embeddings": POSITIONS,
        }
        if family == "mixtral":
            model |= {"num_local_experts": 2, "num_experts_per_tok": 2}
    return {"model_type": family, **model, "vocab_size": VOCABULARY, "tie_word_embeddings": tied}


def graph_of(folder, config, sets=()):
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return load_workload(str(file), list(sets))


def tensors_of(config, seed=0):
    """Random parameters under the names of transformers."""
    chance = np.random.default_rng(seed)

    def matrix(*shape):
        return chance.normal(0, 0.2, shape).astype(np.float32)

    def factors(width):
        return chance.normal(1, 0.2, width).astype(np.float32)

    if config["model_type"] in ENCODERS:
        return _bert_tensors(config, matrix, factors)
    if config["model_type"] == "gpt2":
        width = config["n_embd"]
        made = {"wte.weight": matrix(VOCABULARY, width), "wpe.weight": matrix(POSITIONS, width)}
        for layer in range(config["n_layer"]):
            for name, inputs, outputs in (
                ("attn.c_attn", width, 3 * width),
                ("attn.c_proj", width, width),
                ("mlp.c_fc", width, 4 * width),
                ("mlp.c_proj", 4 * width, width),
            ):
                made[f"h.{layer}.{name}.weight"] = matrix(inputs, outputs)
                made[f"h.{layer}.{name}.bias"] = matrix(outputs)
            for name in ("ln_1", "ln_2"):
                made[f"h.{layer}.{name}.weight"], made[f"h.{layer}.{name}.bias"] = factors(width), matrix(width)
        made["ln_f.weight"], made["ln_f.bias"] = factors(width), matrix(width)
        if not config["tie_word_embeddings"]:
            made["lm_head.weight"] = matrix(VOCABULARY, width)
        return made
    width, inner = config["hidden_size"], config["intermediate_size"]
    shared = width // config["num_attention_heads"] * config["num_key_value_heads"]
    made = {"model.embed_tokens.weight": matrix(VOCABULARY, width), "model.norm.weight": factors(width)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, outputs, inputs in (
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", shared, width),
            ("self_attn.v_proj", shared, width),
            ("self_attn.o_proj", width, width),
            *_perceptrons(config, inner, width),
        ):
            made[f"{at}.{name}.weight"] = matrix(outputs, inputs)
            if config["model_type"] == "qwen2" and name[10:] in ("q_proj", "k_proj", "v_proj"):
                made[f"{at}.{name}.bias"] = matrix(outputs)
        made[f"{at}.input_layernorm.weight"] = factors(width)
        made[f"{at}.post_attention_layernorm.weight"] = factors(width)
    if not config["tie_word_embeddings"]:
        made["lm_head.weight"] = matrix(VOCABULARY, width)
    return made


def _bert_tensors(config, matrix, factors):
    """Parameters of an encoder."""
    width, inner, embeddings = config["hidden_size"], config["intermediate_size"], "bert.embeddings"
    made = {
        f"{embeddings}.{name}_embeddings.weight": matrix(rows, width)
        for name, rows in (("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2))
    }
    dense, norms = [("pooler.dense", width, width)], ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        dense += [(f"{at}.attention.self.{name}", width, width) for name in ("query", "key", "value")]
        dense += [
            (f"{at}.attention.output.dense", width, width),
            (f"{at}.intermediate.dense", inner, width),
            (f"{at}.output.dense", width, inner),
        ]
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for name, outputs, inputs in dense:
        made[f"bert.{name}.weight"], made[f"bert.{name}.bias"] = matrix(outputs, inputs), matrix(outputs)
    for name in norms:
        made[f"bert.{name}.weight"], made[f"bert.{name}.bias"] = factors(width), matrix(width)
    return made


def position_ids(config, tokens):
    """Rows of the position table that one sequence takes, as transformers' modules count them."""
    if config["model_type"] == "opt":  # OPTLearnedPositionalEmbedding, of a mask of ones
        return np.arange(len(tokens)) + 2
    if config["model_type"] == "roberta":  # create_position_ids_from_input_ids
        padding = PADDING
        ids = []
        for token in tokens:
            ids.append(padding if token == padding else max([padding, *ids]) + 1)
        return np.array(ids)
    return np.arange(len(tokens))


def pooled_of(config, tensors, tokens):
    """What BERT's pooler makes of one sequence, as transformers' module computes it, in float64."""
    t = {name.removeprefix("bert."): value.astype(np.float64) for name, value in tensors.items()}

    def dense(name, x):
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def normed(name, x):
        return _layer_norm(x, t[f"{name}.weight"], t[f"{name}.bias"])

    words, positions, types = (t[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type"))
    x = normed("embeddings.LayerNorm", words[tokens] + positions[position_ids(config, tokens)] + types[0])
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        each = [dense(f"{at}.attention.self.{name}", x) for name in ("query", "key", "value")]
        heads = zip(*(np.split(part, config["num_attention_heads"], axis=1) for part in each), strict=True)
        context = [_softmax(q @ k.T / np.sqrt(q.shape[1])) @ v for q, k, v in heads]
        attended = dense(f"{at}.attention.output.dense", np.concatenate(context, axis=1))
        x = normed(f"{at}.attention.output.LayerNorm", x + attended)
        inner = dense(f"{at}.intermediate.dense", x)
        inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
        x = normed(f"{at}.output.LayerNorm", x + dense(f"{at}.output.dense", inner))
    return np.tanh(dense("pooler.dense", x[0]))


def _perceptrons(config, inner, width):
    """Names, outputs and inputs of the products of a layer's perceptron, or of its experts'."""
    experts = config.get("num_local_experts", 0)
    if not experts:
        yield from (
            (f"mlp.{name}_proj", outputs, inputs)
            for name, outputs, inputs in (("gate", inner, width), ("up", inner, width), ("down", width, inner))
        )
        return
    yield "block_sparse_moe.gate", experts, width
    for expert in range(experts):
        for name, outputs, inputs in (("w1", inner, width), ("w2", width, inner), ("w3", inner, width)):
            yield f"block_sparse_moe.experts.{expert}.{name}", outputs, inputs


def logits_of(config, tensors, tokens):
    """Logits of the last token of one sequence, as transformers' modules compute them, in float64."""
    t = {name.removeprefix("model."): value.astype(np.float64) for name, value in tensors.items()}
    gpt2 = config["model_type"] == "gpt2"
    x = t["wte.weight"][tokens] + t["wpe.weight"][: len(tokens)] if gpt2 else t["embed_tokens.weight"][tokens]
    for layer in range(config["n_layer"] if gpt2 else config["num_hidden_layers"]):
        own = {
            name.split(".", 2)[2]: v for name, v in t.items() if name.startswith((f"h.{layer}.", f"layers.{layer}."))
        }
        x = (_gpt2_layer if gpt2 else _llama_layer)(config, own, x)
    if gpt2:
        x = _layer_norm(x, t["ln_f.weight"], t["ln_f.bias"])
    else:
        x = _rms_norm(x, t["norm.weight"])
    table = t.get("lm_head.weight", t.get("wte.weight", t.get("embed_tokens.weight")))
    return x[-1] @ table.T


def _layer_norm(x, gamma, beta):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON) * gamma + beta


def _rms_norm(x, gamma):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * gamma


def _softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _attention(q, k, v):
    """One head; queries, keys and values of (tokens, dim)."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores[np.triu_indices(len(q), 1)] = -np.inf
    return _softmax(scores) @ v


def _gpt2_layer(config, own, x):
    heads = config["n_head"]
    normed = _layer_norm(x, own["ln_1.weight"], own["ln_1.bias"])
    q, k, v = np.split(normed @ own["attn.c_attn.weight"] + own["attn.c_attn.bias"], 3, axis=1)
    parts = [np.split(each, heads, axis=1) for each in (q, k, v)]
    context = np.concatenate([_attention(*head) for head in zip(*parts, strict=True)], axis=1)
    x = x + context @ own["attn.c_proj.weight"] + own["attn.c_proj.bias"]
    inner = _layer_norm(x, own["ln_2.weight"], own["ln_2.bias"]) @ own["mlp.c_fc.weight"] + own["mlp.c_fc.bias"]
    inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
    return x + inner @ own["mlp.c_proj.weight"] + own["mlp.c_proj.bias"]


def _rotated(x):
    """Transformers' rotary positions: the halves of a head turn against each other."""
    dim = x.shape[1]
    angle = np.arange(len(x))[:, None] * ROPE_BASE ** (-np.arange(0, dim, 2) / dim)
    angle = np.concatenate([angle, angle], axis=1)
    swapped = np.concatenate([-x[:, dim // 2 :], x[:, : dim // 2]], axis=1)
    return x * np.cos(angle) + swapped * np.sin(angle)


def _llama_layer(config, own, x):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    normed = _rms_norm(x, own["input_layernorm.weight"])
    q, k, v = (
        normed @ own[f"self_attn.{name}_proj.weight"].T + own.get(f"self_attn.{name}_proj.bias", 0.0) for name in "qkv"
    )
    queries = np.split(q, heads, axis=1)
    keys, values = (np.split(each, kv_heads, axis=1) for each in (k, v))
    group = heads // kv_heads
    context = [
        _attention(_rotated(query), _rotated(keys[head // group]), values[head // group])
        for head, query in enumerate(queries)
    ]
    x = x + np.concatenate(context, axis=1) @ own["self_attn.o_proj.weight"].T
    normed = _rms_norm(x, own["post_attention_layernorm.weight"])
    if "num_local_experts" in config:
        return x + _mixture(config, own, normed)
    return x + _gated(normed, *(own[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down")))


def beside_of(config, weights, tokens):
    """Logits of one sequence's last token, of a GPT-NeoX or a Falcon with the graph's own random weights, in float64.

    Neighbours of a head turn against each other, as in all that weights of no file are made for.
    """
    flow, falcon = weights.graph.dataflow, config["model_type"] == "falcon"
    new = config.get("new_decoder_architecture", False)
    heads = config["num_attention_heads"]
    kv_heads = (config["num_kv_heads"] if new else 1) if falcon else heads
    beside = falcon or config["use_parallel_residual"]

    def dense(name, layer, x):
        at, operator = At(name, layer), flow[name]
        return x @ weights.matrix(at, operator).astype(float) + weights.bias(at, operator)

    def normed(name, layer, x):
        return _layer_norm(x, *weights.norm(At(name, layer), flow[name]))

    x = weights.table(At("embedding.tokens", 0), flow["embedding.tokens"]).astype(float)[tokens]
    for layer in range(config["num_hidden_layers"]):
        first = normed("layer.norm" if falcon and not new else "layer.attention_norm", layer, x)
        width = x.shape[1] // heads
        parts = np.split(dense("layer.qkv", layer, first), heads + 2 * kv_heads, axis=1)
        queries, keys, values = parts[:heads], parts[heads : heads + kv_heads], parts[heads + kv_heads :]
        context = [
            _attention(
                _turned(query, width), _turned(keys[head * kv_heads // heads], width), values[head * kv_heads // heads]
            )
            for head, query in enumerate(queries)
        ]
        attended = dense("layer.output", layer, np.concatenate(context, axis=1))
        if not beside:
            x = x + attended
        second = first if falcon and not new else normed("layer.feed_forward_norm", layer, x)
        inner = dense("layer.up", layer, second)
        inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
        x = x + dense("layer.down", layer, inner) + (attended if beside else 0.0)
    return dense("head", 0, normed("head.norm", 0, x)[-1:])[0]


def _turned(x, dim):
    """Columns 2i and 2i + 1 of a head as a complex number, turned by an angle that grows with the token's position."""
    pairs = x[:, ::2] + 1j * x[:, 1::2]
    pairs = pairs * np.exp(1j * np.arange(len(x))[:, None] * ROPE_BASE ** (-np.arange(0, dim, 2) / dim))
    return np.stack([pairs.real, pairs.imag], axis=2).reshape(x.shape)


def _gated(x, gate, up, down):
    gates = x @ gate.T
    return gates / (1 + np.exp(-gates)) * (x @ up.T) @ down.T


def _mixture(config, own, x):
    """Mixtral's block: a softmax over all experts, of which the largest are kept and made to add up to one."""
    chances = _softmax(x @ own["block_sparse_moe.gate.weight"].T)
    made = np.zeros_like(x)
    for token, row in enumerate(chances):
        chosen = np.argsort(-row)[: config["num_experts_per_tok"]]
        for expert in chosen:
            parts = (own[f"block_sparse_moe.experts.{expert}.w{number}.weight"] for number in (1, 3, 2))
            made[token] += row[expert] / row[chosen].sum() * _gated(x[token], *parts)
    return made


def safetensors(tensors, format="F32"):
    """A safetensors file of tensors, all in one format."""
    header, data = {}, b""
    for name, value in tensors.items():
        if format == "BF16":
            raw = (value.astype("<f4").view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            raw = value.astype({"F32": "<f4", "F16": "<f2"}[format]).tobytes()
        header[name] = {"dtype": format, "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data

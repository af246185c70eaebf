"""Strategies for operation rows."""

from hypothesis import strategies as st

from siliconloom.baselines.operations import COLLECTIVES, ELEMENTWISE

size = st.integers(1, 2**20)
dtype = st.sampled_from(["fp32", "tf32", "fp16", "bf16", "fp8", "int8"])


@st.composite
def attention(draw, op):
    kv_heads = draw(st.integers(1, 16))
    row = {
        "op": op,
        "batch": draw(st.integers(1, 256)),
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.integers(1, 8)),
        "head_dim": draw(st.sampled_from([64, 128, 256])),
        "dtype": draw(dtype),
    }
    if op == "attention_backward":
        row["head_dim"], row["dtype"] = draw(st.sampled_from([64, 96, 128])), draw(st.sampled_from(["bf16", "fp16"]))
    if op != "attention_decode":
        row["q_len"] = draw(size)
        row["kv_len"] = row["q_len"] + draw(st.integers(0, 2**16))
        row["causal"] = draw(st.booleans())
        if row["causal"] and row["kv_len"] > 1 and draw(st.booleans()):
            row["window"] = draw(st.integers(1, row["kv_len"] - 1))
    else:
        row["q_len"], row["kv_len"] = 1, draw(size)
    return row


gemm = st.fixed_dictionaries(
    {"op": st.just("gemm"), "m": size, "n": size, "k": size, "batch": st.integers(1, 64), "dtype": dtype}
)
experts = st.fixed_dictionaries(
    {
        "op": st.just("grouped_gemm"),
        "m": size,
        "n": size,
        "k": size,
        "batch": st.integers(1, 256),
        "dtype": dtype,
        "dealt": st.sampled_from(["even", "chance"]),
        "top_k": st.integers(1, 4),
    }
).map(
    lambda r: (
        r | {"m": r["m"] * r["top_k"], "batch": r["batch"] + 3}
        if r["dealt"] == "chance"
        else {name: value for name, value in r.items() if name != "top_k"}
    )
)
collective = st.fixed_dictionaries(
    {
        "op": st.sampled_from([str(op) for op in COLLECTIVES]),
        "gpus": st.integers(2, 64),
        "bytes": st.integers(1, 2**40),
        "dtype": dtype,
    }
)
elementwise = st.fixed_dictionaries(
    {"op": st.sampled_from([str(op) for op in ELEMENTWISE]), "m": size, "n": size, "dtype": dtype}
)
kernel = st.one_of(
    gemm,
    experts,
    attention("attention_prefill"),
    attention("attention_decode"),
    attention("attention_backward"),
    collective,
    elementwise,
)

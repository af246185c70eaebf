"""Functions of state-space models, which have a duration and no circuit.

A cycle of a lane is what it is elsewhere: one power of two of a sum or a product (as the second pass of a softmax), or
one product with a sum (as ``add`` and ``combine``). Passes are counted from the recurrences, per column and row:

- Mamba (Gu and Dao, arXiv:2312.00752, equations 2 and 4): for each of k states h = 2^(d A) h + (d x) B and y += C h are
  a power, a product with a sum, and another one; d x and y + D x are one cycle each, whatever k.
- Mamba-2 (Dao and Gu, arXiv:2405.21060, section 6 and listing 1): decays are one number to a head, so a step has a
  product with a sum for h and one for y in each of k states; beside them the power, d x and y + D x.
- Gated delta net (Yang et al., arXiv:2412.06464, equation 10): of each of k states the product with the decay, and a
  product with a sum for what the key finds, for the state, and for what the query finds; beside them the power, and
  the difference of the value and what was found, times its strength.
"""

from siliconloom.arch.vector import FunctionSpec, register_function

register_function(
    FunctionSpec(
        name="softplus", code=28, passes=2, circuit=False, result="ln(1 + e^a): a power, and a logarithm of one more"
    )
)
register_function(
    FunctionSpec(
        name="causal_conv1d",
        code=29,
        passes=0,
        each=1,
        circuit=False,
        result="bias + sum of k taps, each times a of its row or of one of the k - 1 before it, per column",
    )
)
register_function(
    FunctionSpec(
        name="selective_scan",
        code=30,
        passes=2,
        each=3,
        recurs=True,
        circuit=False,
        result="y + D · x, y = sum of C · h over k states, h = 2^(d · A) · h + d · x · B, row by row",
    )
)
register_function(
    FunctionSpec(
        name="state_update",
        code=31,
        passes=3,
        each=2,
        recurs=True,
        circuit=False,
        result="as selective_scan, of states that share a decay 2^(d · A) in each head",
    )
)
register_function(
    FunctionSpec(
        name="chunk_cumsum", code=32, recurs=True, circuit=False, result="s = s + a · A, row by row of a chunk"
    )
)
register_function(
    FunctionSpec(
        name="chunk_decay",
        code=33,
        passes=3,
        circuit=False,
        result="a · d(c) · 2^(s(r) − s(c)) up to the diagonal, else 0, of the s and d of rows and columns of a chunk",
    )
)
register_function(
    FunctionSpec(
        name="chunk_inputs", code=34, passes=3, circuit=False, result="a · d · 2^(t − s), t the last s of the chunk"
    )
)
register_function(
    FunctionSpec(
        name="state_passing",
        code=35,
        passes=2,
        recurs=True,
        circuit=False,
        result="the h before each chunk, h = 2^t · h + a, chunk by chunk",
    )
)
register_function(
    FunctionSpec(
        name="chunk_outputs", code=36, passes=3, circuit=False, result="a + b · 2^s + D · x, of three operands"
    )
)
register_function(
    FunctionSpec(
        name="delta_update",
        code=42,
        passes=3,
        each=4,
        recurs=True,
        circuit=False,
        result="y = sum of q · h over k states, h = g · h + κ · β · (x − sum of κ · g · h), row by row",
    )
)

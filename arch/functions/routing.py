"""Functions of a mixture of experts, and of logits: the largest elements of rows, and weighted sums of rows.

- ``top_k`` makes the weights of experts of a token's logits, a row to a token and a column to an expert: a softmax over
  the ``k`` largest of the row, in 1/127, and zero for all others. Of equal logits the expert of the lower number comes
  first. Of all experts (``k`` columns or fewer) it is a softmax of int8 values.
- ``combine`` adds up what the experts made of a token: of k rows that adjoin, each times its weight, the sum is exact
  and is rounded once. With weights of a softmax in 1/127 that is the mixture of experts' own sum.
- ``argmax`` finds the column of the largest value of a row, of equal ones the lowest, as an index of a gather.
"""

from siliconloom.arch.vector import FunctionSpec, Parameters, register_function

register_function(
    FunctionSpec(
        name="top_k",
        code=17,
        passes=2,
        reductions=1,
        parameters=(Parameters.SCALARS,),
        chooses=True,
        floats="of the k largest of each row 2^(t − peak) / sum, t = a · m0; of others 0",
        result="of the k largest of each row 127 · 2^(t − peak) / sum, t = a · m0 / 2^shift in 1/256; of the others 0",
    )
)
register_function(
    FunctionSpec(
        name="combine",
        code=20,
        parameters=(Parameters.SCALARS,),
        weighs=True,
        floats="sum of k rows, each times its element of b, one after the other, · m0",
        result="sum of k rows, each times its byte of b, · m0 / 2^shift",
    )
)
register_function(
    FunctionSpec(
        name="argmax",
        code=21,
        passes=1,
        reductions=1,
        indexes=True,
        floats="the column of the largest value of each row, of NaN if there is one, of equal ones the first: 4 bytes, "
        "low byte first",
        result="the column of the largest value of each row, of equal ones the first: 4 bytes, low byte first",
    )
)

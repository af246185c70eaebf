"""Fields that descriptions of workloads share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from siliconloom.arch.datatype import DataType

Count = Annotated[int, Field(ge=1, le=2**20, strict=True)]
Title = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/+-]*$")]
"""What a workload may be called: nothing that a terminal, a table or a report takes for more than text."""

DEFAULT_PRECISION = DataType.BF16


def _of_operands(dtype: DataType) -> DataType:
    if dtype is DataType.FP4_E2M1:
        raise ValueError("fp4_e2m1 is the format of elements of MX blocks alone (precision mxfp4)")
    return dtype


OperandFormat = Annotated[DataType, AfterValidator(_of_operands)]
"""A format that both operands of a product may have."""

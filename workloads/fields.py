"""Fields that descriptions of workloads share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from siliconloom.arch.datatype import DataType

Count = Annotated[int, Field(ge=1, le=2**20, strict=True)]
Title = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/+-]*$")]
"""What a workload may be called: nothing that a terminal, a table or a report takes for more than text."""

DEFAULT_PRECISION = DataType.BF16

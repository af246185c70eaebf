"""A ring of chips and the collectives on it: which chunk goes where, in which order.

Every chip holds the same buffer, cut into as many *shares* as there are chips, each of ``pieces`` chunks of equal size.
In step s a chip of rank r sends share (r - s) mod n to the chip of rank r + 1; the first n - 1 steps are the
reduce-scatter, in which what arrives is added, the others the all-gather, in which it replaces what was there
(Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, section 4). A chunk is sent when it is complete: in the first step
when the chip's own results are (track and trigger, Pati et al., T3, ASPLOS 2024), later when the chunk arrived.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from siliconloom.arch.datatype import DataType
from siliconloom.arch.document import Description

WORDS_BITS = 16
"""Of the number of flits in a chunk."""
ADDRESS_BITS = 32
"""Of an address of the engine's memory, in flits."""
READ_AHEAD = 4
"""Flits that are read from memory before the link takes them."""


class RingEngine(Description):
    """The engine of one chip: what it adds, and how finely it tracks."""

    operand: DataType = Field(default=DataType.INT8, description="int8, saturating, or int32, modulo 2^32")
    pieces: int = Field(default=1, ge=1, le=16, description="chunks of a share, each tracked and sent by itself")

    @model_validator(mode="after")
    def _check(self) -> RingEngine:
        if self.operand not in (DataType.INT8, DataType.INT32):
            raise ValueError(f"operand must be int8 or int32 (got {self.operand.value})")
        return self

    def chunks(self, chips: int) -> int:
        """Chunks of the buffer."""
        return chips * self.pieces

    def messages(self, chips: int) -> int:
        """Chunks that every chip sends, and receives, in a reduce-scatter followed by an all-gather."""
        return 2 * (chips - 1) * self.pieces

    def chunk_sent(self, rank: int, message: int, chips: int) -> int:
        """The chunk of message number ``message`` from the chip of this rank."""
        step, piece = divmod(message, self.pieces)
        return (rank - step) % chips * self.pieces + piece

    def reduces(self, message: int, chips: int) -> bool:
        """Whether a message is added to what is there."""
        return message < (chips - 1) * self.pieces

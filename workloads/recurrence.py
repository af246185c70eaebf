"""Functions with a state that goes on from row to row, or with operands that all columns of a row share."""

from __future__ import annotations

from typing import ClassVar

from siliconloom.workloads.operators import Vector


class Recurrence(Vector, frozen=True, kw_only=True):
    """A function of a matrix whose rows are ``sequences`` runs of equally many, one behind the other.

    Parameters
    ----------
    sequences
        Runs of rows that know nothing of one another: sequences of tokens, chunks of one.
    states
        What the work on each element grows with: states of a column, taps of a convolution.
    state_rows
        Rows, as long as those of the operand, of what a sequence goes on from: its states, or its last tokens.
    begun
        The sequences go on from a state that lies in memory, as in decode; else from zeros.
    beside
        Elements of each row that are read for all of its columns (B and C of a scan, decays of heads).
    """

    sequences: int = 1
    states: int = 1
    state_rows: int = 0
    begun: bool = False
    beside: int = 0

    _dimensions: ClassVar[tuple[str, ...]] = (
        *Vector._dimensions,
        "sequences",
        "states",
        "state_rows",
        "begun",
        "beside",
    )

    def __post_init__(self) -> None:
        if self.rows % self.sequences:
            raise ValueError(f"{self.name}: {self.rows} rows are no {self.sequences} equal runs")

    @property
    def run(self) -> int:
        """Rows of a sequence."""
        return self.rows // self.sequences

    @property
    def apart(self) -> bool:
        """Whether rows of a sequence depend on one another, so that only whole sequences are shared."""
        return self.state_rows > 0 or self.function.spec.recurs

    @property
    def counted(self) -> int:
        return self.states

    @property
    def state_elements(self) -> int:
        """Elements of the states of all sequences."""
        return self.sequences * self.state_rows * self.cols

    @property
    def state_bytes(self) -> int:
        """Bytes of these."""
        return self.precision.size(self.state_elements)

    @property
    def input_elements(self) -> int:
        return super().input_elements + self.rows * self.beside + self.begun * self.state_elements

    @property
    def output_elements(self) -> int:
        return super().output_elements + self.state_elements


__all__ = ["Recurrence"]

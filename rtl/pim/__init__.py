"""The PIM tile as circuits: command sequencer, bank-side lanes, global buffer, read-out."""

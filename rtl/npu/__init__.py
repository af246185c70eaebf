"""The NPU tile as circuits: sequencer, queues, DMA, scratchpad, array control, vector unit, registers."""

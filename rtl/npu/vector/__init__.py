"""The vector unit of an NPU tile; the layouts of its operands stand in `rtl.npu.vector.unit`."""

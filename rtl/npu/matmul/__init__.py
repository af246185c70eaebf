"""The array inside an NPU tile; the layouts of its operands stand in `rtl.npu.matmul.unit`."""

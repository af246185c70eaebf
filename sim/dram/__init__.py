"""DRAM, command by command: devices, address mappings, controllers, and memories made of them."""

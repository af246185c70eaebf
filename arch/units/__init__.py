"""The units of this package: every module registers its own, see `arch.opcodes`."""

"""The vector functions of this package: every module registers its own, see `arch.vector`."""

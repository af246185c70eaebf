"""Version of the result's schema, for those that write a result without its model (`arch.result`)."""

RESULT_SCHEMA = "siliconloom.result/2"

__all__ = ["RESULT_SCHEMA"]

"""Requests that come in over time: traces of them, and processes that draw their times."""

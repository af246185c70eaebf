"""Collectives and communication programs as tables of messages."""

"""Requests in time: what a replica's scheduler does in each step, what its memory holds, which replica gets what."""

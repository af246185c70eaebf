"""Attention of long sequences over several chips: who attends what with which tokens, and what passes meanwhile."""

from siliconloom.mapper.context.schedule import ContextBlock, Kind, Schedule, ScheduleMessage
from siliconloom.mapper.context.schemes import SCHEMES, context_schedule
from siliconloom.mapper.context.tokens import Piece, Shard, pairs_of, shard_tokens

__all__ = [
    "SCHEMES",
    "ContextBlock",
    "Kind",
    "ScheduleMessage",
    "Piece",
    "Schedule",
    "Shard",
    "context_schedule",
    "pairs_of",
    "shard_tokens",
]

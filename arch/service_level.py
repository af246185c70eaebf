"""What a request should keep to: limits of a service (``--slo``)."""

from __future__ import annotations

from msgspec import Struct

from siliconloom.arch.errors import LoomError, nearest_name
from siliconloom.arch.quantity import DURATION, parse
from siliconloom.arch.serving import PICOSECONDS


class ServiceLevel(Struct, frozen=True):
    """What a request should keep to: seconds to its first token, for each further one, in all; ``None``: whatever."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def asked(self) -> dict[str, float]:
        """Those that are given."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


def parse_level(text: str) -> ServiceLevel:
    """``ttft=2s,tpot=50ms``; raises `LoomError` for anything else."""
    names, found = ("ttft", "tpot", "e2e"), dict[str, float]()
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in names:
            near = nearest_name(name, names)
            hint = f"; did you mean '{near}'?" if near else ""
            raise LoomError(
                f"--slo: must be limits of {', '.join(names)}, as in ttft=2s,tpot=50ms (got '{part}'){hint}"
            )
        if f"{name}_s" in found:
            raise LoomError(f"--slo: {name} stands twice")
        try:
            seconds = float(parse(value, DURATION, "50 ms")) / PICOSECONDS
        except Exception as error:
            raise LoomError(f"--slo: {name}: {error} (got '{value}')") from None
        if not 0 < seconds < 1e9:
            raise LoomError(f"--slo: {name}: must be more than no time (got '{value}')")
        found[f"{name}_s"] = seconds
    return ServiceLevel(**found)

"""Sizes in bytes as users write and read them: "512MiB", "64 KiB", "1_048_576"."""

import re

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SIZE = re.compile(r"([+-]?\d[\d_]{0,40})\s*([kmg]ib)?", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """The bytes of a size such as "512MiB" or "-1". None for no size or over 41 digits."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return int(found[1].replace("_", "")) * _UNITS[(found[2] or "").lower()]


def format_size(count: float) -> str:
    """`count` bytes in the largest unit that leaves at least one: 1.5 GiB, 20.0 MiB, 12 B."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"

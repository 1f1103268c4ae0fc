"""A problem that the user types for the daemon."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_SEARCH = re.compile(r"^([a-z][a-z_-]*?)(?:-(\d+))?$")
DEFAULT_SEARCH = "beam-16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A problem as it was typed, with what its fields say."""

    problem: str = ""
    search: str = DEFAULT_SEARCH
    """Strategy and number of paths, as in `beam-16`."""

    seed: str = ""
    limit_s: str = ""
    pair: str = ""

    def build_body(self) -> dict[str, Any]:
        """The body of a run. Raises ValueError with what is wrong."""
        match = _SEARCH.match(self.search)
        if not self.problem:
            raise ValueError("Type a problem first.")
        if match is None:
            raise ValueError("A search is like beam-16.")
        body: dict[str, Any] = {"problem": self.problem, "strategy": match[1].replace("-", "_")}
        body |= {"n": int(match[2])} if match[2] else {}
        if self.seed:
            if not self.seed.isdecimal():
                raise ValueError("A seed is a whole number, or empty.")
            body["seed"] = int(self.seed)
        if self.limit_s:
            if re.fullmatch(r"\d+(\.\d*)?", self.limit_s) is None:
                raise ValueError("A time limit is a number of seconds, or empty.")
            body["deadline_s"] = float(self.limit_s)
        return body | ({"pair": self.pair} if self.pair else {})

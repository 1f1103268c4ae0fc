"""The pairs that a request may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flashedge.errors import NotFound
from flashedge.models.specs import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class ServablePairs:
    """The pairs whose files are on this machine."""

    load: Callable[[], Mapping[str, Pair]]
    is_here: Callable[[Pair], bool]
    usual: str
    """The default pair."""
    deterministic: bool
    """The default for searches that do not set it."""

    def list_names(self) -> list[str]:
        """The default pair, then the others."""
        here = [name for name, pair in self.load().items() if self.is_here(pair)]
        return sorted(here, key=lambda name: (name != self.usual, name))

    def find(self, name: str | None = None, param: str = "model") -> Pair:
        """The pair of a name, or the default one. param: the field of the request that names it.

        Raises NotFound for a pair that is unknown or not on this machine.
        """
        name = self.usual if name is None else name
        pair = self.load().get(name)
        if pair is None:
            known = ", ".join(map(repr, self.list_names()))
            raise NotFound(
                f"there is no model {name!r}",
                hint=f"this daemon serves {known} and, as a search, {self.usual}:beam-16",
                param=param,
            )
        if not self.is_here(pair):
            raise NotFound(
                f"the files of the pair {name!r} are not on this machine",
                hint=f"flashedge models pull {name}",
                param=param,
            )
        return pair

"""Which engine owns the KV memory, where the two engines use all of it alternately.

The memory changes hands at a barrier common to all runs: when no request is open for the owner and
one is open for the other engine. Until then the other engine's requests wait.

Ref: arXiv 2509.00195 §4.3 (offload of the inactive model's KV). The paper has one run; with several
no engine becomes idle by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class EngineRole(StrEnum):
    """One of the two engines of a pair."""

    GENERATOR = "generator"
    VERIFIER = "verifier"

    @property
    def other(self) -> EngineRole:
        return EngineRole.VERIFIER if self is EngineRole.GENERATOR else EngineRole.GENERATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who owns the KV memory, and how many requests of all runs are open for each engine."""

    generator_requests: int = 0
    verifier_requests: int = 0
    owner: EngineRole = EngineRole.GENERATOR

    def count_requests(self, role: EngineRole) -> int:
        is_generator = role is EngineRole.GENERATOR
        return self.generator_requests if is_generator else self.verifier_requests

    def open_request(self, role: EngineRole) -> Ownership:
        return self._add(role, 1)

    def close_request(self, role: EngineRole) -> Ownership:
        """Raises ValueError if no request is open for this engine."""
        if not self.count_requests(role):
            raise ValueError(f"no {role} request is open")
        return self._add(role, -1)

    @property
    def next_owner(self) -> EngineRole:
        """The engine that should own the memory now."""
        other = self.owner.other
        if self.count_requests(self.owner) == 0 and self.count_requests(other) > 0:
            return other
        return self.owner

    def give_to(self, role: EngineRole) -> Ownership:
        return replace(self, owner=role)

    def _add(self, role: EngineRole, count: int) -> Ownership:
        if role is EngineRole.GENERATOR:
            return replace(self, generator_requests=self.generator_requests + count)
        return replace(self, verifier_requests=self.verifier_requests + count)

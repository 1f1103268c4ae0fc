"""The pairs that a request may name, and what each gives to fields that the request leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashedge.errors import NotFound
from flashedge.models.specs import Pair
from flashedge.runtime.request.strategies import find_usual_strategy, list_strategies
from flashedge.types import BLANK_LINE, MIN_STEP_TOKENS, STEP_ENTROPY, STEPS, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values of a pair for fields that a request leaves out."""

    pair: str = "bundled"
    sampling: Sampling
    max_model_len: int
    """Most tokens of prompt and path together."""
    strategies: tuple[str, ...] = ("beam",)
    """Those that the verifier can serve."""
    strategy: str = "beam"
    max_step_tokens: int
    max_path_tokens: int
    step_rule: str = BLANK_LINE
    step_entropy: float = STEP_ENTROPY
    min_step_tokens: int = MIN_STEP_TOKENS
    judge: str = STEPS
    has_budgets: bool = False
    """Whether the engine limits the thinking of its model."""
    deterministic: bool = False
    scores_pairs: bool = False
    """Whether vLLM's own handler can score pairs of texts by the verifier."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The options of each strategy."""


class ServablePairs:
    """The pairs whose files are on this machine."""

    def __init__(
        self,
        load: Callable[[], Mapping[str, Pair]],
        is_here: Callable[[Pair], bool],
        usual: str,
        *,
        deterministic: bool = False,
    ) -> None:
        """load: reads all known pairs. usual: the default pair. deterministic: the default for
        searches that do not set it."""
        self._load = load
        self._is_here = is_here
        self._deterministic = deterministic
        self.usual = usual

    def list_names(self) -> list[str]:
        """The default pair, then the others."""
        here = [name for name, pair in self._load().items() if self._is_here(pair)]
        return sorted(here, key=lambda name: (name != self.usual, name))

    def find_defaults(self, name: str | None = None, param: str = "model") -> Defaults:
        """What a pair gives to a request, None the usual one. param: the field that names it.

        Raises NotFound for a pair that is unknown or not on this machine.
        """
        name = self.usual if name is None else name
        pair = self._load().get(name)
        if pair is None:
            known = ", ".join(map(repr, self.list_names()))
            raise NotFound(
                f"there is no model {name!r}",
                hint=f"this daemon serves {known} and, as a search, {self.usual}:beam-16",
                param=param,
            )
        if not self._is_here(pair):
            raise NotFound(
                f"the files of the pair {name!r} are not on this machine",
                hint=f"flashedge models pull {name}",
                param=param,
            )
        return build_defaults(pair, deterministic=self._deterministic)


def build_defaults(pair: Pair, *, deterministic: bool) -> Defaults:
    """What a pair gives to a request."""
    judges = pair.verifier.judges
    return Defaults(
        pair=pair.name,
        sampling=pair.sampling,
        max_model_len=pair.generator.max_model_len,
        strategies=list_strategies(judges),
        strategy=find_usual_strategy(judges, pair.judge),
        max_step_tokens=pair.max_step_tokens,
        max_path_tokens=pair.max_path_tokens,
        step_rule=pair.step_rule,
        step_entropy=pair.step_entropy,
        min_step_tokens=pair.min_step_tokens,
        judge=pair.judge,
        has_budgets=pair.generator.reasoning_parser is not None,
        deterministic=deterministic,
        scores_pairs=pair.verifier.scores_pairs,
        options=pair.options,
    )

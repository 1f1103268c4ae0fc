"""The switches of the optimizations.

An optimization lives in a file of its own; its switch is a field here and, for users, the key
`scheduling_<switch>` of `Config`. `runtime/drive/engines.py` turns the switches into what a run
works with: for the daemon, for the simulator and for the benchmarks. No switch changes a result:
every search builds the same tree, token for token.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from flashedge.config import Config

KEY_PREFIX = "scheduling_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizations:
    """Which optimizations a run uses. The defaults are those of the configuration on a GPU."""

    suffix_scoring: bool = True
    """Score only the new step of a path, and end steps inside the engine. Ours. Without it the
    engines are their stock twins, but with `speculation` only the verifier is: the stock generator
    drafts nothing. Baseline runs and measurements switch it off."""

    prefix_order: bool = True
    """Submit the paths of a level that share KV next to each other. Ref: arXiv 2509.00195 §4.2."""

    kv_split: bool = True
    """Divide the KV memory of both engines by what the levels need. Ref: arXiv 2509.00195 §4.3."""

    offload: bool = True
    """Let the split give all KV memory to each engine in turn, with the KV of the other engine in
    host memory. Needs `kv_split`. Ref: arXiv 2509.00195 §4.3."""

    speculation: bool = True
    """Draft the next steps of finished paths while others of their level still generate.
    Ref: arXiv 2509.00195 §4.1."""

    lookahead: bool = False
    """Score a drafted step together with the step before it. Needs `speculation`.
    Ref: arXiv 2509.00195 §4.1."""

    early_scores: bool = False
    """Score each step when it ends, while others of its level still generate. Ours. Excludes
    `lookahead`, which scores whole levels."""

    score_once: bool = True
    """Score equal paths of a run in one pass. Ours."""

    joined_tokens: bool = True
    """Send the tokens of a step from the engine some 20 times a second, and not one by one. Ours.
    """

    @classmethod
    def only(cls, *switches: str) -> Self:
        """These are on, all others off. Raises TypeError for an unknown switch."""
        return cls(**{**dict.fromkeys(SWITCHES, False), **dict.fromkeys(switches, True)})

    @classmethod
    def none(cls) -> Self:
        """What a baseline run uses."""
        return cls.only()

    @classmethod
    def from_config(cls, config: Config, *, separate_processors: bool) -> Self:
        """The switches of the daemon.

        separate_processors: whether each engine computes on processors of its own. Then early
        scores pay, and are on unless the configuration says otherwise.
        """
        switches = {switch: getattr(config, key) for switch, key in CONFIG_KEYS.items()}
        if switches["early_scores"] is None:
            switches["early_scores"] = separate_processors
        switches["early_scores"] &= not switches["lookahead"]
        return cls(**switches)

    def to_config(self) -> dict[str, bool]:
        """The keys of `Config` that set these switches."""
        return {key: getattr(self, switch) for switch, key in CONFIG_KEYS.items()}


SWITCHES = tuple(field.name for field in dataclasses.fields(Optimizations))
CONFIG_KEYS = {name: KEY_PREFIX + name for name in SWITCHES if name != "suffix_scoring"}

"""The features that users switch on and off, and the optimizations of one run.

`runtime/drive/engines.py` turns them into engines and helpers. No optimization changes a result:
every search builds the same tree, token for token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

_BOOLEANS = {"on": True, "true": True, "off": False, "false": False}


def feature(default: bool | None, description: str) -> Any:
    """A field of `Features`. default: None where the daemon decides by the machine."""
    field: Any = dataclasses.field
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The setting `features`: what is on or off, with a note whose idea each feature was."""

    prefix_order: bool = feature(
        True, "Submit paths of a level that share KV to the engines next to each other."
    )
    """Ref: arXiv 2509.00195 §4.2."""
    speculation: bool = feature(
        True, "Draft the next steps of finished paths while others of their level generate."
    )
    """Ref: arXiv 2509.00195 §4.1."""
    token_drafts: bool = feature(
        True,
        "Draft the next tokens of a path from the text of its run and from earlier ones of the same"
        " client, and compute several in a step where that is quicker. The tokens are the same. Not"
        " yet on cards.",
    )
    """Ours."""
    lookahead: bool = feature(
        False,
        "Score a drafted step together with the step before it. On simulated engines it costs more"
        " than it saves.",
    )
    """Needs `speculation`. Ref: arXiv 2509.00195 §4.1."""
    early_scores: bool | None = feature(
        None,
        "Score each step when it ends, while others of its level still generate. Not set: only on"
        " a CPU where each engine has cores of its own.",
    )
    """Excludes `lookahead`, which scores whole levels. Ours."""
    early_commit: bool = feature(
        True,
        "Draft the children of a path as soon as it is certainly kept, whatever the others of its"
        " level get.",
    )
    """Needs `speculation` and `early_scores`. Ours."""
    score_once: bool = feature(True, "Score equal paths of a run in one pass.")
    """Ours."""
    joined_tokens: bool = feature(
        True, "Send the tokens of a search from the engine some 20 times a second, not one by one."
    )
    """Ours."""
    kv_split: bool = feature(
        True,
        "Divide the KV memory of both engines by what the levels need, and move it during runs"
        " where the engines can. Off: keep the memory plan.",
    )
    """Ref: arXiv 2509.00195 §4.3."""
    offload: bool = feature(
        True,
        "On a card, let the split give all KV memory to each engine in turn where that is faster,"
        " with the KV of the other engine in host memory.",
    )
    """Needs `kv_split`. Ref: arXiv 2509.00195 §4.3."""
    mapped_kv: bool | None = feature(
        None,
        "On a card, map the KV onto memory that can be given back, so that the split can move there"
        " as on a CPU. Not set: where a trial of the card succeeds; flashedge doctor says whether"
        " it does. No card has run it yet.",
    )
    """Ours."""
    fused_sampling: bool = feature(
        True,
        "Draw tokens by one Triton kernel on CUDA, and in 32 bits on a CPU. Off: by PyTorch's"
        " operations in 64 bits, which draw the same tokens, only slower.",
    )
    """Ours."""
    async_scheduling: bool | None = feature(
        None,
        "Schedule the generator's next step while one is computed; the tokens are the same. Not"
        " set: on a card, which would otherwise wait for the host, and not on a CPU.",
    )
    """vLLM's."""
    second_runner: bool = feature(
        False,
        "Run the generator by vLLM's second model runner, which needs less host time for a step of"
        " many sequences; searches find the same trees. Deterministic requests are refused"
        " then. On CUDA. Experimental: it has not run on a card.",
    )
    """vLLM's."""
    card_drafts: bool = feature(
        False,
        "Draft tokens on a card too, from a table in its memory. Needs token_drafts and"
        " second_runner. Experimental: it has not run on a card.",
    )
    """Ours."""
    verifier_graphs: bool = feature(
        False,
        "Compile the verifier and capture CUDA graphs for its passes of up to 1,024 tokens, where"
        " launching kernels takes longer than running them. The first start takes longer. On CUDA."
        " Experimental: it has not run on a card.",
    )
    """vLLM's."""
    gang: bool = feature(
        True, "Let programs that have started go before those that have not. No effect under fcfs."
    )
    """Ref: arXiv 2412.20993."""
    fair_clients: bool = feature(
        True, "Let clients take turns by what they were served. No effect under fcfs."
    )
    """Ours."""
    admission: bool = feature(
        True,
        "Start as many searches at once as the KV memory and the engines have use for, at most"
        " max_running. Off: always max_running.",
    )
    """Ours."""
    steady_prompts: bool = feature(
        True,
        "Leave out of a request's instructions what coding agents change in each request: a billing"
        " header, and a count of the tokens left. The KV of the rest is then found again.",
    )
    """Ours."""

    def change(self, given: object) -> Features | None:
        """These features with the changes of "speculation=off,lookahead=on" or of a mapping; a
        whole `Features` replaces them. None when a name or a value is unknown."""
        if isinstance(given, Features):
            return given
        if isinstance(given, str):
            entries = [entry.partition("=") for entry in given.split(",") if entry.strip()]
            given = {name.strip(): _BOOLEANS.get(on.strip().lower()) for name, _, on in entries}
        if not isinstance(given, Mapping) or not given.keys() <= FEATURES.keys():
            return None
        return replace(self, **given) if all(isinstance(v, bool) for v in given.values()) else None

    def list_changes(self) -> dict[str, bool]:
        """The features that differ from the defaults."""
        found = {name: getattr(self, name) for name in FEATURES}
        return {name: on for name, on in found.items() if on is not FEATURES[name].default}

    def __str__(self) -> str:
        changes = self.list_changes().items()
        return ",".join(f"{name}={'on' if on else 'off'}" for name, on in changes)


FEATURES: Mapping[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Features)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizations:
    """Which optimizations a run uses. `Features` says what each does."""

    suffix_scoring: bool = True
    """Score only the new step of a path, and end steps inside the engine. Ours. Baseline runs and
    measurements switch it off, which replaces both engines by their stock twins. With `speculation`
    it replaces only the verifier, since the stock generator can't draft."""
    prefix_order: bool = True
    kv_split: bool = True
    offload: bool = True
    speculation: bool = True
    token_drafts: bool = True
    lookahead: bool = False
    early_scores: bool = False
    early_commit: bool = True
    score_once: bool = True
    joined_tokens: bool = True

    @classmethod
    def only(cls, *switches: str) -> Self:
        """Switch these on, all others off. Raises TypeError for an unknown switch."""
        return cls(**{**dict.fromkeys(SWITCHES, False), **dict.fromkeys(switches, True)})

    @classmethod
    def none(cls) -> Self:
        """What a baseline run uses."""
        return cls.only()

    @classmethod
    def from_features(cls, features: Features, *, separate_processors: bool) -> Self:
        """The switches of the daemon. separate_processors: whether each engine has processors of
        its own, so that early scores pay."""
        switches = {name: getattr(features, name) for name in SWITCHES if name in FEATURES}
        if switches["early_scores"] is None:
            switches["early_scores"] = separate_processors
        switches["early_scores"] &= not switches["lookahead"]
        return cls(**switches)


SWITCHES = tuple(field.name for field in dataclasses.fields(Optimizations))

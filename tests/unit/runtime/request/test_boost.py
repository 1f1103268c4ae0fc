"""Which runs are boosted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashedge.errors import RequestError
from flashedge.runtime.request.plan import ALL, ASKED, OFF, decide_boost, is_boosted
from tests.support.runtime_rig import BEAM

MCTS = replace(BEAM, strategy="mcts")


@pytest.mark.parametrize(
    ("options", "mode", "boosted"),
    [
        ({}, ASKED, False),
        ({"boost": True}, ASKED, True),
        ({"boost": True}, OFF, False),
        ({}, ALL, True),
        ({"boost": False}, ALL, False),
        ({"parallel": 4}, ALL, False),
    ],
)
def test_the_request_and_the_setting_decide(
    options: dict[str, Any], mode: str, boosted: bool
) -> None:
    resolved = decide_boost(replace(MCTS, options=options), mode)
    assert is_boosted(resolved) is boosted
    assert decide_boost(resolved, mode) == resolved


def test_the_record_tells_that_a_request_was_not_boosted() -> None:
    assert decide_boost(replace(MCTS, options={"boost": True}), OFF).options == {"boost": False}


def test_other_searches_and_baselines_are_left_alone() -> None:
    baseline = replace(MCTS, baseline=True)
    for spec in (BEAM, baseline):
        assert decide_boost(spec, ALL) is spec


def test_a_boosted_run_has_no_fixed_number() -> None:
    with pytest.raises(RequestError, match="has no parallel of its own"):
        decide_boost(replace(MCTS, options={"boost": True, "parallel": 2}), ASKED)
    with pytest.raises(RequestError, match="has no take of its own"):
        decide_boost(replace(MCTS, options={"boost": True, "take": "arrival"}), ASKED)

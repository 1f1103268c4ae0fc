"""Only a measured curve says how far speculation may fill a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashedge.config import load_config
from flashedge.engine.profiles import compute_profile_fingerprint, locate_profile
from flashedge.models.registry import find_pair
from flashedge.optimizations import Features
from flashedge.profiler.measure import DECODE
from flashedge.profiler.profile import save_profile
from flashedge.runtime.drive.engines import CONTEXT_TOKENS, set_flat_batch
from flashedge.runtime.kv.curves import load_curves
from tests.support.fake_probe import sample
from tests.unit.runtime.kv.test_curves import profile


@pytest.mark.parametrize(
    ("kept", "speculation"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_the_flat_batch_comes_from_the_profile_alone(
    tmp_path: Path, kept: bool, speculation: bool
) -> None:
    config = load_config(environ={"FLASHEDGE_HOME": str(tmp_path)})
    config = replace(config, features=Features(speculation=speculation))
    pair = find_pair("bundled", config)
    if kept:
        path = locate_profile(pair, config)
        save_profile(profile(compute_profile_fingerprint(pair, config)), path)
    speculator: Any = SimpleNamespace(flat_batch=0)
    set_flat_batch(speculator, load_curves(pair, config).generator, config)
    once, eight = (sample(DECODE, batch, CONTEXT_TOKENS, 1).seconds for batch in (1, 8))
    flat = 1 + int(7 * 0.25 * once / (eight - once))  # between these two the curve is a line
    assert 1 < flat < 8
    assert speculator.flat_batch == (flat if kept and speculation else 0)

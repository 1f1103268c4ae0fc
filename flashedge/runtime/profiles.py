"""Where a pair's profile is kept, and what it must have been measured on to count here."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from flashedge.config import Config
from flashedge.engine.platform import device_kind, find_vllm
from flashedge.errors import EngineError
from flashedge.models.fingerprint import pair_fingerprint
from flashedge.models.specs import Pair
from flashedge.profiler.device import describe_device
from flashedge.profiler.errors import ProfileError
from flashedge.profiler.profile import Found, load_profile


def profile_path(pair: Pair, config: Config) -> Path:
    return config.state_dir / "profiles" / f"{pair.name.replace('/', '_')}.json"


def profile_fingerprint(pair: Pair, config: Config) -> dict[str, str]:
    """What a profile of the pair hangs on here. Raises ConfigError, EngineError without a card."""
    name, version = find_vllm()
    try:
        device = describe_device(device_kind())
    except ProfileError as error:
        raise EngineError(str(error), hint=error.hint) from error
    return {
        **device,
        "vllm": f"{name} {version}",
        "torch": importlib.metadata.version("torch"),
        "pair": f"{pair.name} {pair_fingerprint(pair, config)}",
        "threads": str(config.threads_per_engine),
    }


def find_profile(pair: Pair, config: Config) -> Found:
    """The pair's profile, if it was measured on what is here now. Raises as the fingerprint."""
    return load_profile(profile_path(pair, config), profile_fingerprint(pair, config))

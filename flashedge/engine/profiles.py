"""Finds the profile of a pair, if it was measured with this machine's devices and software."""

import importlib.metadata
from pathlib import Path
from urllib.parse import quote

from flashedge.config import Config
from flashedge.engine.layout import find_layout
from flashedge.engine.platform import detect_device_kind, find_vllm
from flashedge.errors import EngineError
from flashedge.models.folders import fingerprint_pair
from flashedge.models.specs import Pair
from flashedge.profiler import ProfileError
from flashedge.profiler.gpu import describe_device
from flashedge.profiler.profile import FoundProfile, load_profile


def locate_profile(pair: Pair, config: Config) -> Path:
    return config.state_dir / "profiles" / f"{quote(pair.name, safe='+')}.json"


def compute_profile_fingerprint(pair: Pair, config: Config) -> dict[str, str]:
    """What a profile depends on, by name. Raises as `find_vllm`; EngineError if no card answers."""
    name, version = find_vllm()
    try:
        device = describe_device(detect_device_kind())
    except ProfileError as error:
        raise EngineError(str(error), hint=error.hint) from error
    found = {
        **device,
        "vllm": f"{name} {version}",
        "torch": importlib.metadata.version("torch"),
        "pair": f"{pair.name} {fingerprint_pair(pair, config)}",
        "threads": str(config.threads_per_engine),
    }
    layout = find_layout(config)
    if not layout.is_default:
        found["cards"] = "; ".join(str(cards.describe()) for cards in layout.each)
    for feature in ("second_runner", "verifier_graphs"):
        if getattr(config.features, feature):
            found[feature] = "on"
    return found


def find_profile(pair: Pair, config: Config) -> FoundProfile:
    """Load the pair's profile if it is valid. Raises as `compute_profile_fingerprint`."""
    return load_profile(locate_profile(pair, config), compute_profile_fingerprint(pair, config))

"""A pair of the free model and a small verifier."""

from collections.abc import Sequence
from pathlib import Path

from scripts.bench.engine.free_model import TEMPERATURE, write_free_model, write_small_verifier
from scripts.bench.engine.served_pair import ServedPair, find_served_pair

NAME = "free"
POSITIONS = 4096

_REGISTRY = """
[generators.free]
source = "{generator}"
dtype = "float32"
max_model_len = {positions}

[verifiers.small]
source = "{verifier}"
dtype = "float32"
max_model_len = {positions}
family = "qwen_prm"
step_token = "<extra_0>"

[pairs.free]
description = "a generator that computes nothing, for the time of everything else"
generator = "free"
verifier = "small"
sampling = {{ temperature = {temperature} }}
max_step_tokens = 512
max_path_tokens = 3072
"""


def write_free_pair(folder: Path, paths: Sequence[Sequence[int]] = ()) -> ServedPair:
    """Write the pair into a folder. paths: see `write_free_model`."""
    generator = write_free_model(folder / "generator", paths, positions=POSITIONS)
    verifier = write_small_verifier(folder / "verifier", positions=POSITIONS)
    names = {"generator": generator, "verifier": verifier, "positions": POSITIONS}
    registry = _REGISTRY.format(temperature=TEMPERATURE, **names)
    (folder / "models.toml").write_text(registry)
    return find_served_pair(NAME, folder=folder)

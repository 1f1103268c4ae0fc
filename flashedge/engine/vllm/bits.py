"""The fingerprint of an engine pair's bits: what tokens and scores depend on besides the request.

Two deterministic runs of one request are promised to be equal where their fingerprints are. Where
these differ, the first name that differs says why the runs may.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping
from typing import Any

from flashedge.config import Config
from flashedge.engine.platform import detect_device_kind, find_vllm
from flashedge.models.folders import model_digest
from flashedge.models.specs import Pair
from flashedge.profiler.errors import ProfileError
from flashedge.profiler.gpu import describe_device

log = logging.getLogger(__name__)


def describe_bits(pair: Pair, config: Config, self_test: Mapping[str, Any]) -> dict[str, Any]:
    """Plain JSON values by name. The files of both models are read at their ends.

    self_test: holds the shapes of the passes.
    """
    import torch

    kind = detect_device_kind()
    device = _describe_device(kind)
    return {
        "generator": _describe_model(pair, config, "generator"),
        "verifier": _describe_model(pair, config, "verifier"),
        "vllm": " ".join(find_vllm()),
        "torch": importlib.metadata.version("torch"),
        "device": device["device"],
        "driver": None if kind == "cpu" else device["driver"],
        "instructions": torch.backends.cpu.get_cpu_capability() if kind == "cpu" else None,
        "threads": config.threads_per_engine,
        "batch_invariant": config.batch_invariant,
        "generator_passes": self_test["replay_shape"],
        "verifier_passes": self_test["score_shape"],
        **({"verifier_graphs": True} if config.features.verifier_graphs else {}),
    }


def _describe_device(kind: str) -> dict[str, str]:
    """Where the driver does not tell, there is nothing to compare by."""
    try:
        return describe_device(kind)
    except ProfileError as error:
        log.warning("the device is not part of the fingerprint: %s", error)
        return {"device": "unknown", "driver": "unknown"}


def _describe_model(pair: Pair, config: Config, role: str) -> dict[str, Any]:
    spec = getattr(pair, role)
    return {
        "source": spec.source,
        "digest": model_digest(spec, config),
        "dtype": spec.dtype,
        "cards": len(getattr(config.devices, role) or "1"),
    }

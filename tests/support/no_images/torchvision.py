"""Stands in for torchvision, which vLLM's models that see import, and our environment for CPUs
lacks. It has whatever name is asked for. No image is processed: only the text model runs."""

import sys
from unittest.mock import MagicMock

__version__ = "0.0"
__path__: list[str] = []
for name in (
    "io",
    "transforms",
    "transforms.functional",
    "transforms.v2",
    "transforms.v2.functional",
):
    sys.modules[f"{__name__}.{name}"] = MagicMock()

"""The daemon with simulated engines that the product's own tests have."""

from tests.integration.conftest import config, daemon

__all__ = ["config", "daemon"]

"""The command line in a folder of its own, as the product's own tests have it."""

from tests.unit.cli.conftest import cli

__all__ = ["cli"]

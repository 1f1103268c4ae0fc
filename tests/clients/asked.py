"""What every framework asks: a question, a tool, a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel, Field

QUESTION = "Tom has 3 apples and buys 4. How many now?"
MAX_TOKENS = 300
Check = Callable[[str, str], None]
"""(base URL without /v1, model). Raises an exception if the feature does not work."""
Checks = Mapping[str, Check]
"""By the name of the feature: chat, stream, tool, schema, history."""


class Sum(BaseModel):
    """Two numbers to add. Bounded, since the bundled pair would write digits for ever."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b

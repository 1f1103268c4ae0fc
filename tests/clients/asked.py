"""What every framework asks: a question, a tool, a schema."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, Field

QUESTION = "Tom has 3 apples and buys 4. How many now?"
MAX_TOKENS = 300
Check = Callable[[str, str], None]
"""(base URL without /v1, model). Raises an exception if the feature does not work."""
Checks = Mapping[str, Check]
"""By the name of the feature."""


def collect(names: Mapping[str, Any]) -> Checks:
    """The functions of a namespace whose names begin with `check_`."""
    checks = (name for name in names if name.startswith("check_"))
    return {name.removeprefix("check_"): names[name] for name in checks}


class Sum(BaseModel):
    """Two numbers to add. Bounded, since the bundled pair would write digits without end."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b

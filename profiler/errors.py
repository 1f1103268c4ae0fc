"""The exception of this package."""

from __future__ import annotations


class ProfileError(Exception):
    """A measurement failed or could not be stored. `hint` says what to do, if known."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

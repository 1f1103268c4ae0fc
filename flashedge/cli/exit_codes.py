"""Every exit code of `flashedge`. The codes of errors stand at their classes."""

from __future__ import annotations

from flashedge.errors import (
    ConfigError,
    DaemonError,
    EngineError,
    FlashEdgeError,
    QueueFull,
    StoreError,
)

NO_RESULT = FlashEdgeError.exit_code
"""The command ran but has no good result: no answer, a failed problem or check, no daemon."""

INTERRUPTED = 130
BROKEN_PIPE = 141

MEANINGS: dict[int, str] = {
    0: "success",
    NO_RESULT: "no result: no answer, a failed problem, a failed check, no daemon (ps)",
    ConfigError.exit_code: "a wrong command, option, setting or request",
    EngineError.exit_code: "a model engine failed",
    DaemonError.exit_code: "the daemon can't start or be reached",
    StoreError.exit_code: "a file can't be read or written",
    QueueFull.exit_code: "the daemon's queue is full: try again later",
    INTERRUPTED: "interrupted (ctrl-c)",
    BROKEN_PIPE: "the reader of the output went away",
}

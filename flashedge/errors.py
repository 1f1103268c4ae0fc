"""The tree of exceptions that FlashEdge raises deliberately. `api.failures` and `runtime.run` add
a RequestError each.

FlashEdgeError
├── ConfigError            a setting, option or file is wrong                exit 2
│   └── CheckpointError    a model folder is incomplete or of another kind
├── RequestError           the request is wrong                              HTTP 4xx, exit 2
│   ├── NotFound           no such run, pair or strategy                     HTTP 404
│   ├── ContextOverflow    the problem or a path exceeds the context         HTTP 400
│   │   └── PathOverflow   a path exceeds the verifier's; it scores 0        no HTTP answer
│   ├── QueueFull          too many runs wait, or completions are open       HTTP 503, exit 6
│   └── Conflict           the run's state does not allow the request        HTTP 409
├── EngineError            an engine failed                                  HTTP 5xx, exit 3
│   ├── GenerationFailed   one request failed and can be retried
│   └── EngineDead         the engine process ended and is restarted         HTTP 503
├── DaemonError            the daemon can't start or be reached              exit 4
│   ├── DaemonStopping     the daemon stops and takes nothing more           HTTP 503
│   └── RunInterrupted     the daemon ended before the run did               HTTP 410
└── StoreError             a file or the run store can't be read or written  HTTP 507, exit 5

A message says what happened and names the thing; the hint says what to do, with the command.
"""

from __future__ import annotations


class FlashEdgeError(Exception):
    """`str(error)` is one line for users. hint says what to do; param names the wrong field."""

    exit_code = 1
    http_status = 500
    code = "internal_error"

    def __init__(self, message: str, *, hint: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.param = param

    @property
    def line(self) -> str:
        """The message and the hint in one line."""
        return f"{self}; {self.hint}" if self.hint else str(self)


class ConfigError(FlashEdgeError):
    exit_code = 2
    http_status = 400
    code = "config_error"


class CheckpointError(ConfigError):
    code = "bad_checkpoint"


class RequestError(FlashEdgeError):
    exit_code = 2
    http_status = 400
    code = "invalid_request"


class NotFound(RequestError):
    http_status = 404
    code = "not_found"


class ContextOverflow(RequestError):
    code = "context_length_exceeded"


class PathOverflow(ContextOverflow):
    """A path outgrew the verifier's context. Its problem alone fits."""

    code = "path_overflow"


class QueueFull(RequestError):
    """retry_after_s: after how long the client should try again."""

    exit_code = 6
    http_status = 503
    code = "queue_full"

    def __init__(
        self, message: str, *, retry_after_s: float = 5.0, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class Conflict(RequestError):
    http_status = 409
    code = "conflict"


class EngineError(FlashEdgeError):
    exit_code = 3
    http_status = 500
    code = "engine_error"


class GenerationFailed(EngineError):
    code = "generation_failed"


class EngineDead(EngineError):
    http_status = 503
    code = "engine_dead"
    is_suspect = True
    """Whether the request may be why the engine ended. True where that is not known."""


class DaemonError(FlashEdgeError):
    exit_code = 4
    http_status = 503
    code = "daemon_error"


class DaemonStopping(DaemonError):
    code = "stopping"

    @classmethod
    def for_request(cls) -> DaemonStopping:
        return cls("the daemon is stopping", hint="start it again: flashedge up")


class RunInterrupted(DaemonError):
    http_status = 410
    code = "run_interrupted"


class StoreError(FlashEdgeError):
    exit_code = 5
    http_status = 507
    code = "store_error"


def list_error_types() -> tuple[type[FlashEdgeError], ...]:
    """The classes of this module, whose codes a client can receive from the daemon."""
    kinds = (k for k in globals().values() if isinstance(k, type))
    return tuple(k for k in kinds if issubclass(k, FlashEdgeError))

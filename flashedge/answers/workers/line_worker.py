"""A child process that answers questions, each with one reply, in lines of JSON.

It is for work that may hang, needs signals, or would block the daemon's event loop. The child
writes `{"ready": true}` once it accepts questions, or `{"failed": "why"}`.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

START_LIMIT_S = 60.0  # importing sympy or torch takes seconds, more on a busy machine
MAX_FAILED_STARTS = 3  # in a row, after which no child is started any more
MAX_LINE_BYTES = 64 << 20  # of a reply; the groups of many texts exceed asyncio's 64 KiB

log = logging.getLogger(__name__)


class LineWorker:
    """Starts the child, asks it one question at a time, and kills it when it hangs.

    `start` must return True before each `ask`, as the child may have died.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        fallback: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """name and fallback are for the log; fallback says what the caller does without the worker.
        environ: variables added to the daemon's own."""
        self._name = name
        self._command = tuple(command)
        self._fallback = fallback
        self._environ = dict(environ or {})
        self._process: asyncio.subprocess.Process | None = None
        self._failed_starts = 0

    @property
    def pid(self) -> int | None:
        """The child's process id, None if none is running."""
        child = self._process
        return child.pid if child is not None and child.returncode is None else None

    async def start(self) -> bool:
        """Start a child unless one runs. Returns whether one does now. Raises only cancellation."""
        if self.pid is not None:
            return True
        if self._failed_starts >= MAX_FAILED_STARTS:
            return False
        path = os.pathsep.join(filter(None, (find_package_parent(), os.environ.get("PYTHONPATH"))))
        reply: Mapping[str, Any] | None = None
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **self._environ},
                start_new_session=True,
                limit=MAX_LINE_BYTES,
            )
            async with asyncio.timeout(START_LIMIT_S):
                reply = await self._read(self._process)
        except TimeoutError:
            reply = {"failed": f"no answer within {START_LIMIT_S:.0f} s"}
        except OSError as error:
            reply = {"failed": str(error)}
        finally:
            found = reply or {}
            if not found.get("ready"):
                await self.stop()
        if found.get("ready"):
            self._failed_starts = 0
            return True
        self._failed_starts += 1
        why = found.get("failed") or "it exited or gave no answer"
        log.warning("the %s worker did not start (%s); %s", self._name, why, self._fallback)
        return False

    async def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any] | None:
        """Ask the running child. If it died, hung or wrote no JSON, returns None and stops it."""
        child, reply = self._process, None
        assert child is not None
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(question).encode() + b"\n")
            async with asyncio.timeout(limit_s):
                await child.stdin.drain()
                reply = await self._read(child)
        except (TimeoutError, OSError):
            pass
        finally:
            if reply is None:  # also when cancelled: the next question must not read this reply
                await self.stop()
        return reply

    async def stop(self) -> None:
        child, self._process = self._process, None
        if child is None:
            return
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
        await child.wait()

    @staticmethod
    async def _read(child: asyncio.subprocess.Process) -> dict[str, Any] | None:
        """One JSON object. None at the end of the stream or for anything else."""
        assert child.stdout is not None
        try:
            reply = json.loads(await child.stdout.readline())
        except ValueError:
            return None
        return reply if isinstance(reply, dict) else None


def find_package_parent() -> str:
    """The folder from which a child can `import flashedge`."""
    return str(Path(__file__).resolve().parents[3])


def serve(prepare: Callable[[], Callable[[Any], Mapping[str, Any]]]) -> None:
    """In the child: answer questions until stdin ends. What libraries print goes to stderr.

    prepare: loads what is needed, and returns the function that answers a question.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        answer = prepare()
    except Exception as error:
        replies.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")
        return
    replies.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")

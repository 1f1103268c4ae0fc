"""Gives the daemon's memory back: its process replaces itself by one that has loaded nothing.

A process that has imported vLLM keeps some 700 MiB for as long as it lives. The fresh one takes
a tenth of that until a request needs a pair. The process id, the lock and the listening sockets are
passed on, so no client is refused: a connection made meanwhile waits for about a second.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

OPTION = "--inherited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What a daemon passes on to the process that replaces it."""

    listening: Sequence[int]
    """Descriptors of the listening sockets."""
    lock: int
    """Descriptor of the lock's file. Closing any descriptor of that file would release the lock."""
    busy_at: float
    """When the last run or request ended, in seconds of `time.monotonic`."""

    @classmethod
    def parse(cls, text: str) -> Inherited:
        return cls(**json.loads(text))

    def open_sockets(self) -> list[socket.socket]:
        for descriptor in self.listening:
            os.set_inheritable(descriptor, False)
        return [socket.socket(fileno=descriptor) for descriptor in self.listening]

    def replace_process(self) -> NoReturn:
        """Run the daemon's own command line again, in this process."""
        for descriptor in (*self.listening, self.lock):
            os.set_inheritable(descriptor, True)
        words = drop_option(sys.orig_argv[1:])
        os.execv(sys.executable, [sys.executable, *words, f"{OPTION}={json.dumps(asdict(self))}"])


def drop_option(words: Sequence[str]) -> list[str]:
    """A command line without what an earlier process passed on."""
    return [word for word in words if not word.startswith(f"{OPTION}=")]

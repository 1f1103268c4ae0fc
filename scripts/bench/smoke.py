"""`--smoke`: the least work that still runs all code of a script, in a few seconds.

    asked = parse_arguments(parser, seeds=1, requests=20)

`scripts.page_commands` starts each script that a page names with it. The script then works in a
temporary folder, on a FlashEdge home and a port of its own, and `start_daemon` starts simulated
engines. What it prints is no measurement.
"""

import argparse
import atexit
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "data"
"""Where small inputs are."""
SMALL_SAMPLES: Mapping[str, Any] = {
    "samples": SMALL / "scored_answers.jsonl.gz",
    "tokenizer": ROOT / "flashedge" / "bundled" / "generator",
}
"""Eight problems with eight real answers each, and a tokenizer."""
VARIABLE = "FLASHEDGE_SMOKE"
"""Set while a script smokes, for the processes that it starts."""


def parse_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None, **least: object
) -> argparse.Namespace:
    """Parse the command line, to which `--smoke` is added.

    least: what arguments are with `--smoke`, whatever is given. Files that do not exist are then in
    the temporary folder, and PAIR, as pages have it, is the bundled pair.
    """
    parser.add_argument("--smoke", action="store_true", help="the least work that runs all code")
    words = list(sys.argv[1:] if arguments is None else arguments)
    smokes = "--smoke" in words  # it may stand behind a subcommand, whose parser lacks it
    asked = parser.parse_args([word for word in words if word != "--smoke"])
    if smokes or is_smoke():
        vars(asked).update(least)
        for name, value in vars(asked).items():
            setattr(asked, name, _resolve(value))
        _move_out()
    del asked.smoke
    return asked


def is_smoke() -> bool:
    """Whether this process, or the one that started it, was given `--smoke`."""
    return VARIABLE in os.environ


def _resolve(value: object) -> object:
    if isinstance(value, list):
        return [_resolve(each) for each in value]
    if value == "PAIR":
        return "bundled"
    return value.resolve() if isinstance(value, Path) and value.exists() else value


def _move_out() -> None:
    """Work in a temporary folder, which is removed at the end."""
    if is_smoke():
        return
    folder, maker = tempfile.mkdtemp(prefix="smoke-"), os.getpid()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        **{VARIABLE: "1", "TMPDIR": folder},
        **{"FLASHEDGE_HOME": f"{folder}/home", "FLASHEDGE_PORT": str(port)},
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }
    sys.path.insert(0, str(ROOT))
    tempfile.tempdir = folder
    os.chdir(folder)

    def remove() -> None:
        if os.getpid() == maker:  # not a process that was forked
            os.chdir(ROOT)
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)

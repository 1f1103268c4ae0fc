"""Checks every command that stands on a page: README.md, docs/, and the READMEs of scripts.

    python -m scripts.page_commands [--smoke | --long] [PATTERN]

Without an option each command is parsed and not run: what it names exists, and its own parser takes
its arguments. `--smoke` runs each `python -m scripts.…` with `--smoke` (`scripts.bench.smoke`), two
at a time, forked from a process that has imported vLLM. `--long` runs measurements as they stand,
one after the other, which takes days: what succeeded is not repeated (runs/page_commands/), and
commands with a word in CAPITALS, which the reader replaces, are left out. PATTERN: only commands
that match this regular expression. The last line is JSON; the exit code is 1 if a command failed.

A command is a part of a line of a `sh` block, or a text in backticks. After `git checkout REVISION`
the commands of a block are those of that revision. `NOT_SMOKED` names the scripts that `--smoke`
leaves out; the last line counts them.
"""

import argparse
import atexit
import contextlib
import importlib
import io
import itertools
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.util import _exit_function  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from scripts.bench.smoke import ROOT, is_smoke

KEPT = ROOT / "runs" / "page_commands"
PRELOADED = ("flashedge.engine.vllm.pair", "flashedge.cli.main", "scripts.lab.benchmark.simulate")
TOOLS = ("house_size", "live_picture", "record_run", "run_hashes", "screenshots", "vllm_seams")
NOT_SMOKED: Mapping[str, str] = {
    "scripts.page_commands": "would start itself without end",
    **dict.fromkeys(
        ("scripts.architecture_page", "scripts.settings_page"), "run by tests/unit/docs"
    ),
    **dict.fromkeys(tuple(f"scripts.{name}" for name in TOOLS), "a tool that measures nothing"),
    **dict.fromkeys(
        ("scripts.train_outcome", "scripts.train_pair", "scripts.train_prm", "scripts.train_tools"),
        "training; its parts have tests",
    ),
    "scripts.bench.mcts.choose_gate": "loads of 64 searches, minutes of a core",
    **dict.fromkeys(
        ("scripts.bench.foundation.faults", "scripts.bench.foundation.mixed_load"),
        "kill engine processes, which simulated engines lack; tests/engine/test_faults.py",
    ),
    **dict.fromkeys(
        ("scripts.bench.determinism.requests", "scripts.bench.determinism.searches"),
        "tests/engine/test_determinism.py runs it with --quick",
    ),
    "scripts.bench.prefix_cache": "asks vLLM's handlers; tests/engine/test_prefix_cache.py does",
    "scripts.bench.flashtts.simulated_here": "reads what ladder_real measured here",
    "scripts.bench.engine.replayed_search": "starts two vllm serve: half a minute",
    "scripts.bench.engine.level_gaps": "times real engines of two checkouts",
    **dict.fromkeys(
        ("scripts.card.real_figures", "scripts.card.train_prm"),
        "--rehearse runs it without a card, in minutes",
    ),
}
"""Scripts on pages that `--smoke` never starts, and why."""
LIMIT_S = 300.0
"""A smoke run that takes longer failed."""
GRACE_S = 10.0
"""What a run that is ended has to stop its daemon."""
AT_ONCE = 4
"""More than two cores, since scripts wait for engines and daemons."""
_BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_VENV = ".venv/bin/"
STARTS = ("python -m scripts", "bash scripts/", "flashedge ", "git show ", "git checkout ")
"""How a text begins that is a command."""
_FILLED_IN = re.compile(r"(?<![\w-])[A-Z][A-Z_]+(?![\w=])")
"""A word that the reader replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a page."""

    page: str
    words: tuple[str, ...]
    revision: str | None = None
    """Where the block checked it out before."""

    @property
    def module(self) -> str | None:
        """The module of `python -m MODULE`, and of a shell script of scripts/card."""
        match self.words:
            case ("python", "-m", module, *_):
                return module
            case ("bash", script, *_) if script.startswith("scripts/card/"):
                return script.removesuffix(".sh").replace("/", ".")
        return None

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.words[3 if self.words[0] == "python" else 2 :]

    def __str__(self) -> str:
        return shlex.join(self.words)


# ---------------------------------------------------------------- pages


def list_pages() -> list[Path]:
    found = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "scripts").rglob("README.md")]
    return [ROOT / "README.md", ROOT / "flashedge" / "bundled" / "README.md", *sorted(found)]


def list_commands() -> list[Command]:
    """Every command once, with the first page on which it stands."""
    found: dict[tuple[str | None, tuple[str, ...]], Command] = {}
    for page in list_pages():
        name = str(page.relative_to(ROOT))
        for revision, words in find_commands(page.read_text(encoding="utf-8")):
            command = Command(page=name, words=words, revision=revision)
            found.setdefault((revision, words), command)
    return list(found.values())


def find_commands(page: str) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    """Yield each command's revision and words, without variables and `taskset` before it."""
    for _, block in _BLOCK.findall(page):
        revision = None
        for words in itertools.chain.from_iterable(map(split_line, join_lines(block))):
            yield revision, words
            if words[:2] == ("git", "checkout") and len(words) == 3:
                revision = words[2]
    for text in _INLINE.findall(_BLOCK.sub("", page)):
        if text.removeprefix(_VENV).startswith(STARTS):
            for words in split_line(text):
                yield None, words


def split_line(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command of a line, without the files that it reads and writes."""
    line = re.sub(r"\[(--[^]]*)\]", r"\1", line)  # an option that may be left out
    lexer = shlex.shlex(re.sub(r"(?<=\s)2>", ">", line), posix=True, punctuation_chars=";&<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in (*lexer, ";"):
        if words and words[-1][0] in "<>":  # the file
            del words[-1]
        elif word == "|" or word[0] in ";&()":
            while words and re.match(r"[A-Z_][A-Z0-9_]*=", words[0]):
                del words[0]
            if words := words[3:] if words[:1] == ["taskset"] else words:
                yield (words[0].removeprefix(_VENV), *words[1:])
            words = []
        else:
            words.append(word)


def join_lines(block: str) -> Iterator[str]:
    """Yield the lines of a block, each with those that it goes on in."""
    line = ""
    for part in block.splitlines():
        line += part.removesuffix("\\") if part.endswith("\\") else f"{part}\n"
        if part.endswith("\\"):
            continue
        try:
            shlex.split(line, comments=True)
        except ValueError:  # a quotation goes on
            continue
        yield line
        line = ""
    if line:
        raise ValueError(f"a quotation has no end: {line}")


# ---------------------------------------------------------------- parsed


class _Accepted(BaseException):
    """The parser took the arguments. Nothing in a script catches it."""


def find_fault(command: Command) -> str | None:
    """What is wrong with a command, without running it."""
    if command.revision is not None:
        path = f"{command.revision}:{(command.module or '').replace('.', '/')}"
        if not command.module or _look_up(f"{path}/__main__.py") is None:
            return None
        return _look_up(f"{path}.py")
    match command.words:
        case ("flashedge", *arguments):
            return _ask_flashedge(arguments)
        case ("pytest", *words):
            files = (word.partition("::")[0] for word in words if "/" in word and word[0] != "-")
            return next((f"{file} does not exist" for file in files if not _exists(file)), None)
        case ("bash", file, *_) if not _exists(file):
            return f"{file} does not exist"
        case ("bash", file, *words) if not command.module:
            source = (ROOT / file).read_text(encoding="utf-8")
            options = (word for word in words if word[0] == "-" and word not in source)
            return next((f"{file} has no {option}" for option in options), None)
        case ("git", "checkout", place, "--", *files):
            return next(filter(None, (_look_up(f"{place}:{file}") for file in files)), None)
        case ("git", "show", place) | ("git", "checkout", place):
            return _look_up(place)
    return _ask_script(command) if command.module else None


def _exists(name: str) -> bool:
    return (ROOT / name).exists()


def _ask_script(command: Command) -> str | None:
    """Let the script's parser parse its words. A script that is only named may lack arguments."""
    module, arguments = command.module or "", command.arguments
    if module == "scripts.card.train_prm":  # which gives them to another script
        module, arguments = "scripts.train_prm", ("all", *arguments)
        if "--rehearse" in arguments:  # which stands for a generator, too
            rest = (word for word in arguments if word != "--rehearse")
            arguments = (*rest, "--generator", "bundled")
    path = ROOT / module.replace(".", "/")
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return f"there is no module {module}"
    source = file.read_text(encoding="utf-8")
    if "argparse" not in source:
        return "it takes no arguments" if arguments and "sys.argv" not in source else None
    parse, errors = argparse.ArgumentParser.parse_args, io.StringIO()

    def parse_only(self: argparse.ArgumentParser, *given: Any, **named: Any) -> NoReturn:
        parse(self, *given, **named)
        raise _Accepted

    try:
        with (
            patch.object(argparse.ArgumentParser, "parse_args", parse_only),
            patch.object(sys, "argv", [module, *arguments]),
            contextlib.redirect_stderr(errors),
        ):
            runpy.run_module(module, run_name="__main__")
    except _Accepted:
        return None
    except SystemExit as left:
        if not command.arguments and "arguments are required" in errors.getvalue():
            return None
        return (errors.getvalue().strip() or repr(left)).splitlines()[-1]
    return "it ran without a look at its arguments"


def _ask_flashedge(words: Sequence[str]) -> str | None:
    """Let click parse a command's words. A command that is only named may lack its arguments."""
    command, left = _load_flashedge(), list(words)
    while left and hasattr(command, "get_command"):
        group = command.context_class(command, info_name=command.name)
        if (command := command.get_command(group, name := left.pop(0))) is None:
            return f"there is no command {name}"
    if not left:
        return None
    try:
        with contextlib.redirect_stdout(None):  # --help prints
            command.make_context(command.name, left)
    except Exception as error:
        if getattr(error, "exit_code", 1) == 0:
            return None
        return str(getattr(error, "message", "") or repr(error))
    return None


@cache
def _load_flashedge() -> Any:
    import typer

    from flashedge.cli.main import app

    return typer.main.get_command(app)


def _look_up(place: str) -> str | None:
    """What the history lacks: REVISION or REVISION:PATH. A tree without all of it is not asked."""
    git = ("git", "-C", str(ROOT))
    asked = (*git, "rev-parse", "--is-shallow-repository")
    if subprocess.run(asked, capture_output=True, check=False).stdout.strip() != b"false":
        return None
    done = subprocess.run((*git, "cat-file", "-e", place), capture_output=True, check=False)
    return f"the history has no {place}" if done.returncode else None


# ---------------------------------------------------------------- run


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a command ended."""

    command: Command
    cpu_s: float
    """Of the processes that it waited for."""
    code: int | None
    """None: it was ended after `LIMIT_S`."""
    log: Path
    """What it printed."""

    def find_fault(self) -> str | None:
        """Why it failed. The last line of a measurement must be JSON."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if self.code is None:
            return f"it took more than {LIMIT_S:.0f} s"
        if self.code:
            return f"exit code {self.code}: {lines[-1] if lines else 'it printed nothing'}"
        module, *words = (self.command.module, *self.command.arguments)
        is_page = module == "scripts.bench.real" and words[:1] != ["run"]
        if is_page or not str(module).startswith("scripts.bench."):
            return None
        try:
            json.loads(lines[-1])
        except (IndexError, ValueError):
            return "its last line is no JSON"
        return None


def is_script(command: Command) -> bool:
    """Whether it is a script of this checkout, which runs without a card."""
    ours = command.words[:2] == ("python", "-m") and not command.revision
    return ours and str(command.module).startswith("scripts.")


def list_smokes(commands: Iterable[Command]) -> list[Command]:
    """Commands that differ in more than numbers, with or without their options, and names of files,
    which `--smoke` replaces."""
    found: dict[tuple[str, ...], Command] = {}
    for command in commands:
        if not is_script(command) or command.module in NOT_SMOKED:
            continue
        words = re.sub(r" -[-\w]+(?= \d)", "", str(command)).split()
        key = tuple(word for word in words if re.fullmatch(r"-.+|[a-z_+]+", word))
        key = (str(command.module), *key)
        found.setdefault(key, command)
    return list(found.values())


def smoke(commands: Sequence[Command], logs: Path) -> Iterator[Run]:
    """Run commands with `--smoke`, so many at a time as there are cores."""
    from flashedge.engine.vllm import compat
    from flashedge.engine.vllm.process.start import start_fork_server

    compat.prepare_environment()
    start_fork_server()
    for name in PRELOADED:
        importlib.import_module(name)
    waiting = list(enumerate(commands))[::-1]
    running: dict[int, tuple[Command, float, Path]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                index, command = waiting.pop()
                log = logs / f"{index}.log"
                running[fork(command, log)] = (command, time.monotonic(), log)
            ended, status, used = os.wait4(-1, os.WNOHANG)
            if ended in running:
                command, _, log = running.pop(ended)
                code = os.waitstatus_to_exitcode(status)
                yield Run(command=command, cpu_s=used.ru_utime + used.ru_stime, code=code, log=log)
            for process, (command, since, log) in list(running.items()):
                if time.monotonic() - since > LIMIT_S:
                    end([process])
                    del running[process]
                    yield Run(command=command, cpu_s=0.0, code=None, log=log)
            if not ended:
                time.sleep(0.05)
    finally:
        end(running)


def end(processes: Iterable[int]) -> None:
    """End runs, which get `GRACE_S` to stop what they started."""
    left, until = set(processes), time.monotonic() + GRACE_S
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGTERM)
    while left and time.monotonic() < until:
        left -= {process for process in left if os.waitpid(process, os.WNOHANG)[0]}
        time.sleep(0.05)
    for process in left:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)


def fork(command: Command, log: Path) -> int:
    """Run a script in a process with what this one has imported. Returns the process's id."""
    if process := os.fork():
        return process
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, _leave)
        atexit._clear()  # what this process has to tidy up at its end
        atexit.register(_exit_function)
        output = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # The fork server is this process's sibling, for whose end it can't wait.
        for server in (forkserver, forkserver._forkserver):
            patch.object(server, "ensure_running", lambda: None).start()
        sys.argv = [command.module or "", *command.arguments, "--smoke"]
        runpy.run_module(command.module or "", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
        os._exit(code)


def _leave(*_: object) -> NoReturn:
    """What was started ends with this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit("it was ended")


def run_long(commands: Sequence[Command], logs: Path) -> Iterator[Run]:
    """Run measurements as they stand. What succeeded before is left out."""
    for command in commands:
        name = re.sub(r"\W+", "-", str(command))[:200]
        log, done = logs / f"{name}.log", logs / f"{name}.done"
        if done.exists() or not is_script(command) or ".bench." not in str(command.module):
            continue
        if any(_FILLED_IN.search(word) for word in command.words):
            continue
        with log.open("wb") as output:
            words = [sys.executable, *command.words[1:]]
            process = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            _, status, used = os.wait4(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        cpu_s = used.ru_utime + used.ru_stime
        run = Run(command=command, cpu_s=cpu_s, code=code, log=log)
        if not run.find_fault():
            done.touch()
        yield run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--smoke", action="store_true", help="run each with --smoke")
    how.add_argument("--long", action="store_true", help="run each as it stands")
    parser.add_argument("pattern", nargs="?", default="", help="regular expression")
    asked = parser.parse_args()
    commands = [each for each in list_commands() if re.search(asked.pattern, str(each))]
    faults: dict[str, str] = {}
    runs: Iterable[Run] = ()
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        left_out = len({each.module for each in commands} & NOT_SMOKED.keys())
        if asked.smoke:
            if is_smoke():
                sys.exit("a smoke run can't start another one")
            commands = list_smokes(commands)
            runs = smoke(commands, Path(folder))
        elif asked.long:
            KEPT.mkdir(parents=True, exist_ok=True)
            runs = run_long(commands, KEPT)
        else:
            found = {each: find_fault(each) for each in commands}
            faults = {f"{each.page}: {each}": fault for each, fault in found.items() if fault}
        for run in runs:
            fault = run.find_fault()
            print(f"{run.cpu_s:6.1f} s  {run.command}  {fault or ''}", flush=True)
            if fault:
                faults[f"{run.command.page}: {run.command}"] = fault
                print(run.log.read_text(encoding="utf-8", errors="replace")[-3000:], flush=True)
    for name, fault in faults.items():
        print(f"{name}\n  {fault}")
    counts = {"commands": len(commands), **({"left_out": left_out} if asked.smoke else {})}
    print(json.dumps({**counts, "faults": faults}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()

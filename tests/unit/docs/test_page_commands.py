"""Every command of a page is one that its program takes; what runs them is tested on a small page.

`python -m scripts.page_commands --smoke` runs them (scripts/test.sh).
"""

import argparse
import os
import re
import time
from pathlib import Path

import pytest

from scripts.bench import smoke
from scripts.page_commands import (
    STARTS,
    Command,
    Run,
    end,
    find_commands,
    find_fault,
    fork,
    list_commands,
    list_pages,
    list_smokes,
)

PAGE = """
Type `flashedge runs` or `python -m scripts.house_size [--none]`, not `flashedge_home`.

```sh
FLASHEDGE_PORT=1 S3=1 .venv/bin/flashedge solve \\
  "two; words" -n 4 2>&1 | tee log && flashedge runs > out; flashedge ps   # a comment
taskset -c 0 python -m scripts.bench.lengths.fits < file
git checkout df7dfaa
python -m scripts.old
```

```python
import flashedge
```
"""


def test_commands_are_read_from_blocks_and_texts() -> None:
    assert list(find_commands(PAGE)) == [
        (None, ("flashedge", "solve", "two; words", "-n", "4")),
        (None, ("tee", "log")),
        (None, ("flashedge", "runs")),
        (None, ("flashedge", "ps")),
        (None, ("python", "-m", "scripts.bench.lengths.fits")),
        (None, ("git", "checkout", "df7dfaa")),
        ("df7dfaa", ("python", "-m", "scripts.old")),
        (None, ("flashedge", "runs")),
        (None, ("python", "-m", "scripts.house_size", "--none")),
    ]


def test_no_command_of_a_page_is_unread() -> None:
    read = re.compile(r"^( *)```(sh|text)\n.*?^ *```$", re.DOTALL | re.MULTILINE)
    for page in list_pages():
        rest = read.sub("", page.read_text(encoding="utf-8")).splitlines()
        assert not [line for line in rest if line.lstrip(" $").startswith(STARTS)], page


def test_every_command_of_a_page_is_understood() -> None:
    commands = list_commands()
    assert len(commands) > 200
    faults = [(each.page, str(each), find_fault(each)) for each in commands]
    assert not [fault for fault in faults if fault[2]]


@pytest.mark.parametrize(
    "line",
    [
        "flashedge dance",
        "flashedge solve x --no-such-option",
        "python -m scripts.bench.no_such_script",
        "python -m scripts.bench.lengths.fits --no-such-option",
        "python -m scripts.bench.flashtts.step_lengths --n many",
        "bash scripts/card/validate.sh --no-such-option",
        "bash no/such.sh",
        "bash scripts/setup.sh --no-such-option",
        "pytest -q no/such.py::test",
    ],
)
def test_a_command_that_would_fail_is_found(line: str) -> None:
    assert find_fault(Command(page="page", words=tuple(line.split())))


def test_commands_that_smoke_alike_run_once() -> None:
    lines = ("card --loads 2", "card", "card --part ways", "requests --asynchronous")
    itself = ("python", "-m", "scripts.page_commands")
    words = [("python", "-m", *f"scripts.bench.determinism.{line}".split()) for line in lines]
    commands = [
        Command(page="page", words=each) for each in (*words, itself, ("flashedge", "runs"))
    ]
    assert list_smokes(commands) == [commands[0], commands[2]], (
        "requests and this program are left out"
    )


def test_smoke_replaces_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_move_out", lambda: monkeypatch.setenv(smoke.VARIABLE, "1"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()

    def parse(*words: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        parser.add_argument("files", nargs="*", type=Path)
        parser.add_argument("--pair")
        parser.add_argument("--n", type=int, default=64)
        given = ("there", "gone", "--pair", "PAIR", "--n", "9", *words)
        return smoke.parse_arguments(parser, given, n=1)

    assert (parse().n, parse().pair) == (9, "PAIR")
    least = parse("--smoke")
    assert (least.n, least.pair, least.files) == (1, "bundled", [tmp_path / "there", Path("gone")])
    assert parse().n == 1, "as in a process that it starts"


def test_a_run_has_an_exit_code_and_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a script tidies up at its end it does, too, when it is ended."""
    monkeypatch.syspath_prepend(tmp_path)
    source = "import os, sys, time\ntry:\n os.write(1, b'on')\n {}\nfinally:\n os.write(1, b' off')"
    (tmp_path / "fails.py").write_text(source.format("sys.exit(3)"))
    (tmp_path / "waits.py").write_text(source.format("time.sleep(60)"))
    command = Command(page="page", words=("python", "-m", "fails"))
    _, status = os.waitpid(fork(command, log := tmp_path / "log"), 0)
    assert (os.waitstatus_to_exitcode(status), log.read_text()) == (3, "on off")
    process = fork(Command(page="page", words=("python", "-m", "waits")), log := tmp_path / "2")
    while not (log.exists() and log.read_text()):
        time.sleep(0.01)
    end([process])
    assert log.read_text().startswith("on off")
    with pytest.raises(ChildProcessError):
        os.waitpid(process, 0)


@pytest.mark.parametrize(
    ("printed", "code", "fault"),
    [
        ('table\n{"rows": 1}\n', 0, None),
        ("table\n", 0, "its last line is no JSON"),
        ("", 0, "its last line is no JSON"),
        ("", None, "it took more than 300 s"),
        ("error: no card\n", 2, "exit code 2: error: no card"),
    ],
)
def test_a_run_is_judged_by_its_exit_code_and_last_line(
    tmp_path: Path, printed: str, code: int | None, fault: str | None
) -> None:
    log = tmp_path / "log"
    log.write_text(printed)
    command = Command(page="page", words=("python", "-m", "scripts.bench.any"))
    assert Run(command=command, cpu_s=0.0, code=code, log=log).find_fault() == fault

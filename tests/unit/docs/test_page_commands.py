"""Every command of a page is one that its program takes; what runs them is tested on a small page.

`python -m scripts.page_commands --smoke` runs them (scripts/test.sh).
"""

from pathlib import Path

import pytest

from scripts.page_commands import Command, Run, find_commands, find_fault, list_commands

PAGE = """
Type `flashedge runs` or `python -m scripts.house_size [--none]`, not `flashedge_home`.

```sh
FLASHEDGE_PORT=1 flashedge solve \\
  "two words" -n 4   # a comment
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
        (None, ("flashedge", "solve", "two words", "-n", "4")),
        (None, ("python", "-m", "scripts.bench.lengths.fits")),
        (None, ("git", "checkout", "df7dfaa")),
        ("df7dfaa", ("python", "-m", "scripts.old")),
        (None, ("flashedge", "runs")),
        (None, ("python", "-m", "scripts.house_size", "--none")),
    ]


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
        "pytest no/such.py",
    ],
)
def test_a_command_that_would_fail_is_found(line: str) -> None:
    assert find_fault(Command(page="page", words=tuple(line.split())))


@pytest.mark.parametrize(
    ("printed", "code", "fault"),
    [
        ('table\n{"rows": 1}\n', 0, None),
        ("table\n", 0, "its last line is no JSON"),
        ("", 0, "its last line is no JSON"),
        ("error: no card\n", 2, "exit code 2: error: no card"),
    ],
)
def test_a_run_is_judged_by_its_exit_code_and_last_line(
    tmp_path: Path, printed: str, code: int, fault: str | None
) -> None:
    log = tmp_path / "log"
    log.write_text(printed)
    command = Command(page="page", words=("python", "-m", "scripts.bench.any"))
    assert Run(command=command, cpu_s=0.0, code=code, log=log).find_fault() == fault

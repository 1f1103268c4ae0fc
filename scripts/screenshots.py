"""Draws pictures for docs/: `python -m scripts.screenshots [CAPTURE NAME]`.

Those of the dashboard are the snapshots of the tests (tests/tui/__snapshots__) as PNG. A terminal's
is what `tmux capture-pane -e -p` wrote into the file CAPTURE, of 100 columns. PNGs need
rsvg-convert, which misplaces long texts, so each character is placed by itself.
"""

import io
import re
import shutil
import subprocess
import sys
from html import escape, unescape
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
SHOTS = ROOT / "tests" / "tui" / "__snapshots__" / "test_snapshots"
DOCS = ROOT / "docs" / "screenshots"
NAMES = {
    "a_beam_run": "beam",
    "an_mcts_run": "mcts",
    "a_boosted_run": "boosted",
    "a_queue": "queue",
    "a_replay": "replay",
    "a_finished_run": "finished",
    "a_self_consistency_run": "self-consistency",
    "an_interrupted_run": "interrupted",
    "a_doubtful_run": "doubtful",
    "a_light_theme": "light",
    "the_commands": "commands",
    "the_submit_dialog": "submit",
}
SIZES = {"size0": "80x24", "size1": "120x40", "size2": "200x60"}
ONE_SIZE = {
    "an_interrupted_run": "120x40",
    "a_light_theme": "120x40",
    "the_commands": "120x40",
    "the_submit_dialog": "80x24",
}
_TEXT = re.compile(
    r'<text ([^>]*?)x="([\d.]+)" ([^>]*?)textLength="([\d.]+)"([^>]*)>([^<]*)</text>'
)


def place_characters(svg: str) -> str:
    """The picture with one <text> per character, in a font that every machine has."""

    def split(match: re.Match[str]) -> str:
        head, x, middle, length, tail, content = match.groups()
        text = unescape(content)
        width = float(length) / max(len(text), 1)
        parts = (
            f'<text {head}x="{float(x) + i * width:.2f}" {middle}{tail}>{escape(c)}</text>'
            for i, c in enumerate(text)
            if not c.isspace()
        )
        return "".join(parts)

    return _TEXT.sub(split, re.sub("Fira Code", "DejaVu Sans Mono", svg))


def render_terminal(captured: str) -> str:
    """The picture of a terminal's text with its escape sequences."""
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(captured.rstrip()), "")  # below it room for underscores
    return console.export_svg(title="")


def draw(svg: str, target: Path) -> None:
    command = ["rsvg-convert", "--width", "1100", "-o", str(target)]
    subprocess.run(command, input=place_characters(svg).encode(), check=True)
    print(target.relative_to(ROOT))


def main() -> None:
    DOCS.mkdir(parents=True, exist_ok=True)
    if shutil.which("rsvg-convert") is None:
        raise SystemExit("rsvg-convert is missing; Debian and Ubuntu: apt install librsvg2-bin")
    if len(sys.argv) == 3:
        captured = Path(sys.argv[1]).read_text(encoding="utf-8")
        draw(render_terminal(captured), DOCS / f"{sys.argv[2]}.png")
        return
    for shot in sorted(SHOTS.glob("*.svg")):
        match = re.fullmatch(r"test_(\w+?)(?:\[(\w+)\])?", shot.stem)
        if match is None:
            continue
        target = DOCS / f"{NAMES[match[1]]}-{SIZES.get(match[2]) or ONE_SIZE[match[1]]}.png"
        draw(shot.read_text(encoding="utf-8"), target)


if __name__ == "__main__":
    main()

"""docs/guide/pairs.md's table of what fits the usual cards."""

from pathlib import Path

from flashedge.config import Config
from scripts.card.plan import PAIRS, list_rows

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "pairs.md"


def test_the_table_is_what_the_script_computes(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- fit: made by `python -m scripts.card.plan` -->")
    table, _, _ = rest.partition("<!-- end of fit -->")
    config = Config(cache_dir=tmp_path, config_dir=tmp_path, state_dir=tmp_path)
    assert table.strip() == "\n".join(list_rows(PAIRS, config))

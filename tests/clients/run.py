"""Runs every framework's checks, and the code of its page in the guide, against a daemon. Prints
client × feature.

    .venv-clients/bin/python -m tests.clients.run http://127.0.0.1:8642 bundled bundled:beam-4

The last line is JSON: client -> feature -> model -> "works" or the error.
"""

import functools
import importlib
import json
import re
import sys
from pathlib import Path

from tests.clients.asked import collect

CLIENTS = (
    *("openai_agents", "langchain", "litellm", "pydantic_ai"),
    *("smolagents", "llamaindex", "instructor"),
)
WORKS = "works"
PAGES = Path(__file__).parents[2] / "docs" / "guide" / "frameworks"
ADDRESS, MODEL = "http://127.0.0.1:8642", "bundled:beam-4"
_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def main() -> None:
    url, *models = sys.argv[1:]
    table: dict[str, dict[str, dict[str, str]]] = {}
    for client in CLIENTS:
        module = vars(importlib.import_module(f"tests.clients.with_{client}"))
        checks = dict(module.get("CHECKS") or collect(module))
        checks["page"] = functools.partial(run_page, client)
        for feature, check in checks.items():
            row = table.setdefault(client, {}).setdefault(feature, {})
            for model in models:
                try:
                    check(url, model)
                    row[model] = WORKS
                except Exception as error:
                    row[model] = f"{type(error).__name__}: {error}"[:400]
            print(f"{client:14} {feature:20} {'  '.join(row.values())}", flush=True)
    print(json.dumps(table))
    sys.exit(any(v != WORKS for f in table.values() for row in f.values() for v in row.values()))


def run_page(client: str, url: str, model: str) -> None:
    """Run the code of a framework's page with this address and model."""
    code = "\n".join(_CODE.findall((PAGES / f"{client}.md").read_text()))
    assert ADDRESS in code
    assert MODEL in code
    exec(code.replace(ADDRESS, url).replace(MODEL, model), {"__name__": "__page__"})


if __name__ == "__main__":
    main()

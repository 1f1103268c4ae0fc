"""A conversation's next turn finds the one before in the prefix cache, whatever ran between."""

from itertools import pairwise

import httpx
import pytest

from scripts.bench.daemon import Daemon, read_problems
from scripts.bench.prefix_cache import CHAT, Conversation, chat, measure, replay
from tests.support.streams import read_events

ROWS = read_problems("heldout_easy", 12)[8:]
PROBLEMS = [row["problem"] for row in ROWS]  # no other test asks them
LONG = read_problems("heldout", 14)[-1]["problem"]

CONVERSATIONS: dict[str, Conversation] = {
    "chat": chat("\n".join(PROBLEMS), "bundled", "bundled"),
    "agent": replay("bundled"),
    "chat by beam-4": chat(PROBLEMS[1], "bundled:beam-4", "bundled:beam-4"),
    "chat by beam-4, then plain": chat(PROBLEMS[2], "bundled:beam-4", "bundled"),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_next_turn_finds_the_one_before(served: Daemon, name: str) -> None:
    found = measure(served.url, name, CONVERSATIONS[name], between=2)
    assert found.cached[0] < 32, "the first turn finds no more than the template's beginning"
    assert found.least_share >= 0.9
    if found.answer_share is not None:
        assert found.answer_share >= 0.5, "all but the last block, and that of the turn's end"


def read_counts(url: str) -> tuple[int, ...]:
    """Prompt tokens, and those of them that were cached: of the generator, then the verifier."""
    engines = httpx.get(url + "/v1/status", timeout=10).json()["engines"]
    views = [engines[name]["view"] for name in ("generator", "verifier")]
    return tuple(view[name] for view in views for name in ("prompt_tokens", "cached_tokens"))


@pytest.mark.parametrize("model", ["bundled", "bundled:beam-4"])
def test_status_counts_the_prompts_of_each_engine(served: Daemon, model: str) -> None:
    message = {"role": "user", "content": f"Ask {model} twice. {LONG}"}
    seen = [read_counts(served.url)]
    for _ in range(2):
        body = {"model": model, "messages": [message]}
        usage = httpx.post(served.url + CHAT, json=body, timeout=120).json()["usage"]
        seen.append(read_counts(served.url))
    first, again = (
        [after - before for before, after in zip(*pair, strict=True)] for pair in pairwise(seen)
    )
    if model == "bundled":
        assert first[0] == again[0] == usage["prompt_tokens"]
        assert again[1] == usage["prompt_tokens_details"]["cached_tokens"] > first[1]
        assert first[2:] == again[2:] == [0, 0], "the verifier did nothing"
    else:
        assert first[0] > 4 * usage["prompt_tokens"], "each step of each path is a request"
        assert 0 < first[1] < first[0]
        assert 0 < first[3] < first[2]


def test_a_streamed_search_reports_what_it_found(served: Daemon) -> None:
    """Its notes come before the answer, and the handler reads the first output."""
    body = {
        "model": "bundled:beam-4",
        "messages": [{"role": "user", "content": LONG}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    cached = []
    for _ in range(2):
        usage = read_events(httpx.post(served.url + CHAT, json=body, timeout=120))[-1]["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    prompt = usage["prompt_tokens"]
    assert cached[0] < 32
    assert cached[1] == (prompt - 1) // 32 * 32 > 0

"""How much of a conversation does its next turn find in the prefix cache?

    python -m scripts.bench.prefix_cache [--between 2]

Each conversation runs on a daemon of its own with the bundled pair, alone and with small unrelated
requests between its turns. A turn's prompt contains that of the turn before, so all of that but its
last, partly filled block of KV could be found. Printed are the usage's figures: the prompt of a
turn, and how much of the next turn's prompt was cached. The last line is JSON.

Hypothesis: on an engine with unused memory the next turn finds at least 90 % of a turn's prompt,
whatever ran between the two; behind a search, also the path that was its answer.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import httpx

from scripts.bench.daemon import DATA, read_problems, report, start_daemon

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
SEARCHES = ("beam-4", "best_of_n-4", "self_consistency-4", "mcts-4")
ANSWER_TOKENS = 200
PROBLEMS = 4
"""Earlier problems in the plain chat's first message, so that it is a long one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the usage of one answer says."""

    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What the later turns of a conversation found."""

    conversation: str
    between: int
    """Unrelated requests between two turns."""

    prompts: tuple[int, ...]
    """Tokens of each turn's prompt."""

    cached: tuple[int, ...]
    """Those of them that were cached."""

    least_share: float
    """Of the prompt of the turn before, as found by the next turn; the least of all turns."""

    answer_share: float | None
    """Of the first answer's tokens, as found by the second turn. None where none was sent back."""


Conversation = Callable[[str], Iterator[Turn]]
"""Holds a conversation with the daemon at this address, turn by turn."""


def ask(url: str, path: str, body: Mapping[str, Any]) -> tuple[Turn, str]:
    """Send one turn. Returns what its usage says, and the text of the answer."""
    response = httpx.post(url + path, json=body, timeout=300)
    response.raise_for_status()
    answer = response.json()
    usage = answer["usage"]
    if path == MESSAGES:
        cached = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        prompt = usage["input_tokens"] + cached + written
        text = "".join(part.get("text", "") for part in answer["content"])
        return Turn(
            prompt_tokens=prompt, cached_tokens=cached, answer_tokens=usage["output_tokens"]
        ), text
    details = usage.get("prompt_tokens_details") or {}
    turn = Turn(
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
        answer_tokens=usage["completion_tokens"],
    )
    return turn, answer["choices"][0]["message"]["content"]


def chat(question: str, *models: str) -> Conversation:
    """Two turns of a chat by chat completions: each by its model, the answer sent back."""

    def hold(url: str) -> Iterator[Turn]:
        messages = [{"role": "user", "content": question}]
        for model in models:
            body = {"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS, "seed": 3}
            turn, text = ask(url, CHAT, body)
            yield turn
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": "Is that right? Say yes or no."},
            ]

    return hold


def replay(model: str) -> Conversation:
    """The turns of a coding agent's session, as it sent them."""

    def hold(url: str) -> Iterator[Turn]:
        for body in json.loads((DATA / "coding_session.json").read_text())["requests"]:
            yield ask(url, MESSAGES, {**body, "model": model})[0]

    return hold


def list_conversations() -> dict[str, Conversation]:
    """By name. No two begin alike."""
    problems = [row["problem"] for row in read_problems("heldout", PROBLEMS + len(SEARCHES) + 1)]
    questions = iter(problems[PROBLEMS:])
    found = {
        "chat": chat("\n".join(problems[:PROBLEMS]), "bundled", "bundled"),
        "coding agent": replay("bundled"),
        "chat by beam-4, then plain": chat(next(questions), "bundled:beam-4", "bundled"),
    }
    for search in SEARCHES:
        found[f"chat by {search}"] = chat(next(questions), *[f"bundled:{search}"] * 2)
    return found


def interrupt(url: str, count: int) -> None:
    """Small requests that have nothing to do with the conversation."""
    for number in range(count):
        question = f"Sam has {number + 3} pens and buys 4. How many has Sam?"
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 8}
        ask(url, CHAT, {"model": "bundled", **body})


def measure(url: str, name: str, hold: Conversation, between: int) -> Reuse:
    """Hold a conversation with so many unrelated requests between two of its turns."""
    turns = []
    for turn in hold(url):
        turns.append(turn)
        interrupt(url, between)
    return judge(name, between, turns)


def judge(name: str, between: int, turns: Sequence[Turn]) -> Reuse:
    first, second = turns[:2]
    sent_back = name.startswith("chat")
    behind = min(first.answer_tokens, max(0, second.cached_tokens - first.prompt_tokens))
    return Reuse(
        conversation=name,
        between=between,
        prompts=tuple(turn.prompt_tokens for turn in turns),
        cached=tuple(turn.cached_tokens for turn in turns),
        least_share=min(
            min(after.cached_tokens, before.prompt_tokens) / before.prompt_tokens
            for before, after in pairwise(turns)
        ),
        answer_share=behind / first.answer_tokens if sent_back else None,
    )


def format_reuse(found: Reuse) -> str:
    turns = ", ".join(f"{c}/{p}" for c, p in zip(found.cached, found.prompts, strict=True))
    answer = "" if found.answer_share is None else f"{found.answer_share:.0%}"
    return (
        f"| {found.conversation} | {found.between} | {turns} | {found.least_share:.0%} | {answer} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--between", type=int, default=2, help="unrelated requests between turns")
    options = parser.parse_args()
    print("| conversation | between | cached/prompt, by turn | prompt found | answer found |")
    print("|---|---|---|---|---|")
    rows = []
    for between in (0, options.between):
        with start_daemon() as daemon:
            for name, hold in list_conversations().items():
                rows.append(measure(daemon.url, name, hold, between))
                print(format_reuse(rows[-1]), flush=True)
    report(rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    main()

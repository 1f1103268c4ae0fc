"""Generated ids become text and steps, and the thinking is told from the answer."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashedge.engine.base import Chunk, ExtendRequest, ScoreRequest, StepScores
from flashedge.errors import RequestError
from flashedge.events import Event
from flashedge.runtime.drive.earlier_run import NO_EARLIER_RUN
from flashedge.runtime.drive.event_emitter import EventEmitter
from flashedge.runtime.drive.scoring import Scoring
from flashedge.runtime.drive.segments import (
    IncrementalText,
    StepSplitter,
    build_probe_request,
    run_probe,
)
from flashedge.runtime.drive.speculation_client import SpeculationClient
from flashedge.runtime.request.strategies import build_search, find_usual_strategy
from flashedge.runtime.thinking import NO_THINKING, Thinking
from flashedge.search.base import Generated, Probe
from flashedge.search.step_rules import build_rules, split_steps
from flashedge.search.tree import ROOT, Tree
from flashedge.types import (
    BLANK_LINE,
    MARKERS,
    STEP_RULES,
    THINK_CLOSE,
    THINK_OPEN,
    TOKENS,
    FinishReason,
    Judges,
    NodeId,
    Segment,
    TokenIds,
)
from tests.support.byte_codec import EOS, ByteCodec, Words
from tests.support.runtime_rig import BEST, sim_engines

PIECES = ["So 1.", "\n\n", " Wait", ", 2", "\n", " Hmm", "."]


class PieceCodec(ByteCodec):
    rules = build_rules(enumerate(PIECES))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(PIECES[i] for i in token_ids)


def split(codec: ByteCodec, rule: str, ids: TokenIds, *, to_end: bool = True) -> tuple[str, ...]:
    texts = StepSplitter(codec=codec, rule=rule, max_step_tokens=3)
    return texts.split(ids, codec.decode(ids), to_end=to_end)


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (BLANK_LINE, ("So 1.\n\n", " Wait, 2\n Hmm.")),
        (MARKERS, ("So 1.\n\n Wait", ", 2\n Hmm", ".")),
        (TOKENS, ("So 1.\n\n Wait", ", 2\n Hmm", ".")),
    ],
)
def test_an_answer_is_split_where_steps_would_have_ended(rule: str, steps: tuple[str, ...]) -> None:
    assert split(PieceCodec(), rule, tuple(range(len(PIECES)))) == steps


@pytest.mark.parametrize("rule", [MARKERS, TOKENS])
def test_a_segment_that_is_one_step_stays_whole(rule: str) -> None:
    assert split(PieceCodec(), rule, (0, 1, 3), to_end=False) == ("So 1.\n\n, 2",)


def test_no_step_is_blank_and_no_character_is_cut() -> None:
    text = "a\n\n\n\n\n\nb€€"
    ids = tuple(text.encode())
    assert split(ByteCodec(), TOKENS, ids) == ("a\n\n\n\n\n", "\nb€€")
    held = split(ByteCodec(), TOKENS, tuple("\n\n\n😀😀😀".encode()))
    assert held == ("\n\n\n😀😀😀",), "a held character is no text yet"
    for rule in STEP_RULES:
        assert split(PieceCodec(), rule, ()) == ("",)


TEXT = st.text(alphabet=st.sampled_from("a é€😀\n"), max_size=20).map(str.encode)
BYTES = st.binary(max_size=24).filter(lambda ids: EOS not in ids)


@settings(max_examples=200)
@given(TEXT | BYTES, st.data())
def test_text_is_whole_however_it_is_cut(ids: bytes, data: st.DataObject) -> None:
    """Bytes that are no text come out as the codec decodes them."""
    whole, decoder, told, left = ids.decode(errors="replace"), IncrementalText(ByteCodec()), "", ids
    while left:
        size = data.draw(st.integers(1, len(left)))
        told += decoder.feed(tuple(left[:size]))
        left = left[size:]
        if "\N{REPLACEMENT CHARACTER}" not in whole:
            assert whole.startswith(told), "no half of a character is told"
    assert told + decoder.flush() == whole


def test_spaces_between_words_and_half_a_character_at_the_end_are_kept() -> None:
    decoder = IncrementalText(Words())
    assert [decoder.feed((i,)) for i in (1, 2, 3, 4)] == ["w1", " w2", " w3", " w4"]
    assert decoder.feed(()) == decoder.flush() == ""
    half = IncrementalText(ByteCodec())
    assert half.feed(tuple("é".encode()[:1])) == half.feed(()) == ""
    assert half.flush() == "\N{REPLACEMENT CHARACTER}"


# ---------------------------------------------------------------- thinking


class ThinkingCodec(ByteCodec):
    think_tags = (THINK_OPEN, THINK_CLOSE)


def after(prompt: str) -> Thinking:
    return Thinking.of_prompt(ThinkingCodec(), tuple(prompt.encode()))


CLOSED = after("assistant: ")  # the model opens the tag itself
OPENED = after("assistant: <think>\n")
HARMONY = replace(CLOSED, tags=("analysis", "assistantfinal"))  # gpt-oss's
OFF = after("assistant: <think>\n\n</think>\n\n")
PATH = "<think>\nIs it 2?\n\nNo.\n</think>\n\nSo 1 + 2 = 3.\n\nIt is 3."


class Recorder:
    """A verifier that gives the steps 0.9, 0.4, 0.4, …"""

    def __init__(self) -> None:
        self.requests: list[ScoreRequest] = []

    async def score(self, request: ScoreRequest) -> StepScores:
        self.requests.append(request)
        scores = (0.9, *[0.4] * (len(request.steps) - 1))
        return StepScores(scores=scores, tokens=5, cached_tokens=0)


def grow(text: str) -> tuple[Tree, NodeId, Segment]:
    """A tree of one path with this text."""
    tree, (node,) = Tree.from_seed(1).expand(ROOT, 1)
    texts: dict[str, Any] = {"text": text, "steps": split_steps(text)}
    segment = Segment(token_ids=(1,), logprobs=(0.0,), finish=FinishReason.STOP, **texts)
    return tree.add_segment(node.id, segment), node.id, segment


async def score(
    text: str, *, judges: Judges = "steps", **fields: Any
) -> tuple[tuple[float, ...], list[tuple[str, ...]]]:
    """Returns the scores of a path with this text, and the steps that the verifier saw."""
    spec, verifier = replace(BEST, **fields), Recorder()
    engines = replace(sim_engines(), verifier=verifier, judges=judges)  # type: ignore[arg-type]
    search = build_search(spec, judges)
    texts = StepSplitter(codec=engines.generator.codec, max_step_tokens=8)
    client = SpeculationClient(search, spec, engines, texts)
    ignore = lambda waited_s: None  # noqa: E731
    scoring = Scoring(search, spec, engines, client, NO_EARLIER_RUN, ignore, CLOSED)
    tree, node, _ = grow(text)
    scored = await scoring.score(SimpleNamespace(tree=tree), node)
    return scored.scores, [request.steps for request in verifier.requests]


ANSWER_STEPS = ("So 1 + 2 = 3.\n\n", "It is 3.")


async def test_a_verifier_judges_the_answer_or_by_default_all_that_it_can() -> None:
    """One of steps sees the answer's steps, and gives one score. One of answers sees the answer."""
    steps, answer, whole = [ANSWER_STEPS], [("".join(ANSWER_STEPS),)], [split_steps(PATH)]
    assert await score(PATH, judge="answer", aggregate="min") == ((0.4,), steps)
    assert await score(PATH, judge="answer", aggregate="mean") == ((0.65,), steps)
    assert await score(PATH, judges="answers", judge="answer") == ((0.9,), answer)
    assert (await score(PATH))[1] == whole, "the thinking too"
    assert (await score(PATH, judges="answers"))[1] == answer


async def test_without_an_end_of_the_thinking_there_is_nothing_to_judge() -> None:
    assert await score("<think>\nIs it 2?", judge="answer") == ((0.0,), [])
    whole = await score("It is 3.", judge="answer")
    assert whole == ((0.9,), [("It is 3.",)]), "a model that did not think"


def test_searches_that_prune_need_scores_of_steps() -> None:
    with pytest.raises(RequestError, match="judge is 'answer'") as caught:
        build_search(replace(BEST, strategy="beam", judge="answer"))
    assert "best_of_n" in str(caught.value.hint)
    assert find_usual_strategy("steps", "answer") == "best_of_n"
    assert find_usual_strategy("steps") == "beam"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\nIs it \\boxed{1}?\n</think>\n\nIt is \\boxed{3}.", "3"),
        ("<think>\nIs it \\boxed{1}?\n</think>\n\nI can't say.", None),
    ],
)
def test_a_box_in_the_thinking_is_no_answer(text: str, answer: str | None) -> None:
    emitted: list[Event] = []
    tree, node, segment = grow(text)
    now: Any = SimpleNamespace(tree=tree, history=())
    emitter = EventEmitter(emitted.append, "last", CLOSED.take_answer)
    emitter.emit_turn(Generated(node=node, segment=segment), now, now)
    (event,) = emitted
    assert event.answer == answer


# ---------------------------------------------------------------- probes


class Letters(ByteCodec):
    def encode(self, text: str) -> TokenIds:
        return tuple(text.encode())


class Writer:
    """A generator of one text, three letters in a chunk."""

    codec = Letters()
    max_model_len = 512

    def __init__(self, text: str) -> None:
        self._text = text

    async def extend(self, request: ExtendRequest) -> AsyncIterator[Chunk]:
        ids = self.codec.encode(self._text)[: request.max_tokens]
        for at in range(0, len(ids), 3):
            yield Chunk(token_ids=ids[at : at + 3], logprobs=(0.0,) * len(ids[at : at + 3]))


@pytest.mark.parametrize(
    ("text", "tail_tokens", "read"),
    [
        ("5} Wait, let me check", 8, "5} Wait, l"),
        ("5} Wait, let me check", 0, "5}"),
        (r"\frac{1}{2}}. Hmm", 5, r"\frac{1}{2}}. Hmm"),
        ("5}", 8, "5}"),
        ("5 and so on without an end of the box", 8, "5 and so on without an end of th"),
    ],
)
async def test_a_probe_is_read_to_some_tokens_behind_its_box(
    text: str, tail_tokens: int, read: str
) -> None:
    probe = Probe(node=ROOT, seed=0, suffix="\\boxed{", max_tokens=32, tail_tokens=tail_tokens)
    writer: Any = Writer(text)
    request = build_probe_request(probe, (), BEST, writer, None)
    assert request is not None
    ids, found = await run_probe(request, probe, writer)
    assert (found, len(ids)) == (read, len(read))


# ---------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("thinking", "text", "parts"),
    [
        (CLOSED, "<think>\nSo 2.\n\nWait.\n</think>\n\n4", ("So 2.\n\nWait.", "4")),
        (CLOSED, "\n<think></think>4 < 5", (None, "4 < 5")),
        (CLOSED, "<think>\nSo 2", ("So 2", "")),
        (CLOSED, "<thin air", (None, "<thin air")),
        (CLOSED, " 4", (None, " 4")),
        (OPENED, "So 2. </think> 4\n", ("So 2.", "4\n")),
        (OPENED, "So </th", ("So </th", "")),
        (OFF, "The answer is 4.", (None, "The answer is 4.")),
        (NO_THINKING, "<think>a</think>b", (None, "<think>a</think>b")),
        (HARMONY, "analysisSo 2.assistantfinalIt is 4", ("So 2.", "It is 4")),
        (HARMONY, "finalIt is 4", (None, "It is 4")),
        (CLOSED, "finalIt is 4", (None, "finalIt is 4")),
    ],
)
def test_split(thinking: Thinking, text: str, parts: tuple[str | None, str]) -> None:
    assert thinking.split(text) == parts


def test_the_steps_of_the_answer() -> None:
    steps = ("<think>\nA 1.\n\n", "B.\n</think>\n\n", "So 2.\n\n", "It is 3.")
    assert CLOSED.take_answer(steps) == ("So 2.\n\n", "It is 3.")
    assert CLOSED.take_answer(steps[:1]) == steps[:1]
    assert CLOSED.take_answer(("<think>\n\n", "</think>\n\n", "4")) == ("4",)
    assert NO_THINKING.take_answer(steps) == steps

"""Whatever a model, a tool or a user writes: reading it takes work in proportion to its length.

`READERS` lists what reads such texts in Python. `test_the_list_is_complete` finds every function
of the packages in `READ_IN` that searches a text, so that a new one has to be listed. Lines that
run are counted, never seconds. Inside C, patterns are linear by their form: no unbounded repeat of
theirs can give back what it took, but in `spelling`, whose input is bounded.
"""

import ast
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import flashedge
from flashedge.answers.equality import decide_equal
from flashedge.answers.extraction import extract_answer, extract_open_answer, find_named_answer
from flashedge.answers.numbers import find_numbers, parse_number, parse_words
from flashedge.answers.pairwise import are_alike
from flashedge.answers.spelling import find_option, normalize, write_in_latex
from flashedge.answers.structured import find_calls, write_canonically
from flashedge.certainty.measures import hesitates
from flashedge.engine.vllm.serving.conversation import build_problem, drop_notes
from flashedge.runtime.drive.segments import IncrementalText
from flashedge.runtime.thinking import Thinking
from flashedge.search.step_rules import split_steps
from flashedge.search.strategies.probed_cot import SUFFIX, read_probe
from tests.support.byte_codec import ByteCodec

FRAGMENTS = (
    *(r"\boxed{", r"\boxed{}", r"\boxed{7}}", r"\fbox {", r"\frac{", r"\text{", "\\", r"\\boxed"),
    *("[", "{", '{"a":[', '{"a":"', "[1,", '["', "}", "]", '"', r"\""),
    *("<tool_call>", "<think>", "</think>", "[search]\n", "(", "**", "$", "^", "~", "%"),
    *("<answer>", "Answer: ", "the answer is 5", "#### ", "½", "~p", r"\boxed{1}, ", r"\boxed 5"),
    *("sqrt(", "(sqrt)", r"x = \boxed{1}, ", "2pi "),
    *("\n", "\n\n", "a\n\n", " ", "7", "0.0", "1,000 ", "twenty ", "wait ", "é", "\ud800", "数"),
)
SIZES = 12_500, 25_000, 50_000
LONG = 1_000_000
THINKING = Thinking(begins="before")


def decode_in_pieces(text: str) -> None:
    decoder = IncrementalText(ByteCodec())
    data = text[: len(text) // 25].encode(errors="surrogatepass")
    for byte in data:
        decoder.feed((0xE2 if byte == data[0] else byte,))
    decoder.flush()


READERS: dict[str, Callable[[str], Any]] = {
    "answers.equality.decide_equal": lambda text: decide_equal(text, text + "x"),
    "answers.extraction.extract_answer": extract_answer,
    "answers.extraction.extract_open_answer": lambda text: extract_open_answer([text]),
    "answers.numbers.find_numbers": find_numbers,
    "answers.numbers.parse_number": parse_number,
    "answers.numbers.parse_words": parse_words,
    "answers.spelling.find_option": find_option,
    "answers.spelling.normalize": normalize.__wrapped__,
    "answers.structured.find_calls": lambda text: find_calls(text, ("<tool_call>", "[")),
    "answers.structured.write_canonically": write_canonically,
    "answers.spelling.write_in_latex": write_in_latex,
    "answers.extraction.find_named_answer": find_named_answer,
    "answers.pairwise.are_alike": lambda text: are_alike(text, text + "x"),
    "certainty.measures.hesitates": hesitates,
    "engine.vllm.serving.conversation.build_problem": lambda text: build_problem(
        {"role": "user", "content": part} for part in text.split("\n")
    ),
    "engine.vllm.serving.conversation.drop_notes": lambda text: drop_notes([{"reasoning": text}]),
    "runtime.drive.segments.IncrementalText": decode_in_pieces,
    "runtime.thinking.Thinking.split": THINKING.split,
    "runtime.thinking.Thinking.take_answer": lambda text: THINKING.take_answer((text, text)),
    "search.step_rules.split_steps": split_steps,
    "search.strategies.probed_cot.read_probe": lambda text: read_probe(SUFFIX, text),
}


def count_lines(read: Callable[[str], Any], text: str) -> int:
    lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        read(text)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("name", READERS)
def test_work_grows_with_the_text_and_no_faster(name: str) -> None:
    for fragment in FRAGMENTS:
        small, half, whole = (
            count_lines(READERS[name], fragment * (size // len(fragment))) for size in SIZES
        )
        assert half <= 2.2 * small + 1000, fragment
        assert whole <= 2.2 * half + 1000, fragment


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_a_megabyte_is_read(name: str) -> None:
    print_slowest(name, READERS[name])


def print_slowest(name: str, read: Callable[[str], Any]) -> None:
    took = {}
    for fragment in FRAGMENTS:
        text = fragment * (LONG // len(fragment))
        begin = time.process_time()
        read(text)
        took[fragment] = time.process_time() - begin
    slowest = max(took, key=lambda fragment: took[fragment])
    print(f"{name}: {took[slowest]:.2f} s for 1 MB of {slowest!r}")


@pytest.mark.parametrize("name", READERS)
def test_nothing_is_nested_too_deeply_to_be_read(name: str) -> None:
    for left, right in ("[]", "{}", "()", (r"\boxed{", "}"), ('{"a":', "}"), (r"\text{", "}")):
        READERS[name](left * 20_000 + right * 20_000)


def test_a_deep_value_counts_as_text_however_deep_the_caller_is() -> None:
    deep, value = "[" * 65 + "]" * 65, "[" * 64 + "1 " + "]" * 64
    assert write_canonically(deep + " x") == deep + " x"
    assert write_canonically(value) == value.replace(" ", "")


READ_IN = ("answers", "certainty", "search", "runtime/thinking.py", "runtime/drive/segments.py")
SEARCHES = {"search", "match", "fullmatch", "finditer", "findall", "sub", "split", "partition"}
SEARCHES |= {"find", "raw_decode", "loads"}
NO_MODEL_TEXT = {
    "answers.workers.embedding": "a checkpoint's own file",
    "answers.workers.line_worker": "in the worker, which has a time limit, and a worker's replies",
    "search.catalog": "the name of a strategy",
}


def test_the_list_is_complete() -> None:
    top = Path(flashedge.__file__).parent
    found = set()
    for part in READ_IN:
        for file in [top / part] if part.endswith(".py") else (top / part).rglob("*.py"):
            calls = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
            names = {c.func.attr for c in calls if isinstance(c.func, ast.Attribute)}
            if names & SEARCHES:
                found.add(".".join(file.relative_to(top).with_suffix("").parts))
    covered = {m for m in found if any(reader.startswith(f"{m}.") for reader in READERS)}
    assert found - covered == set(NO_MODEL_TEXT)

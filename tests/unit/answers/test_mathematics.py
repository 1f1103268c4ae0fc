"""Grading by a worker process: results are right and ordered, and survive a failing worker."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from flashedge.answers.workers import line_worker
from flashedge.answers.workers import mathematics as grading
from flashedge.answers.workers.line_worker import LineWorker, find_package_parent
from flashedge.answers.workers.mathematics import MathGrader
from flashedge.types import NodeId

READY = "import sys; print('{\"ready\": true}', flush=True); "


@pytest.fixture(scope="module")
async def grader() -> AsyncIterator[MathGrader]:
    made = MathGrader(limit_s=30.0)  # a busy machine may need seconds
    yield made
    await made.close()


def nodes(*answers: str | None) -> dict[NodeId, str | None]:
    return {NodeId(i): a for i, a in enumerate(answers, start=1)}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt2}", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("x^2", "x^3", False),
        ("1/3", "0.333333", True),
        (r"\{1,2\}", r"\{2,1\}", True),
        ("(1,2)", "(2,1)", False),
        (r"\pi", "3", False),
        ("{{{", "}}", False),
        # operators
        (r"\sqrt{2}+1", r"1+\sqrt{2}", True),
        ("5!+1", "121", True),
        (r"\neg p \wedge q", r"p \wedge q", False),
        (r"5 \pm \sqrt{3}", r"5+\sqrt{3}", False),
        # tiny, huge and close values
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}", False),
        (r"\frac{1}{2^{99}}", r"\frac{2}{2^{100}}", True),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}", False),
        ("e^{-1000}", "e^{-1001}", False),
        (r"\sqrt{10^{40}+1}", "10^{20}", False),
        (r"\sqrt{2}+10^{-30}", r"\sqrt{2}", False),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}", True),
        ("2^{1000}+1", "2^{1000}", False),
        ("10^{-20}x", "10^{-21}x", False),
        ("(10^{-20},1)", "(10^{-21},1)", False),
        (r"\{10^{-20},1\}", r"\{1,10^{-21}\}", False),
        ("x > 10^{-20}", "x > 10^{-21}", False),
        (*(rf"\begin{{pmatrix}}10^{{-{n}}}\\1\end{{pmatrix}}" for n in (20, 21)), False),
        (r"\begin{pmatrix}\sqrt{4}\\2\end{pmatrix}", r"\begin{pmatrix}2\\2\end{pmatrix}", True),
        # decimals that round
        (r"\sqrt{2}", "1.414214", True),
        (r"\sqrt{2}", "1.414", False),
        (r"\sqrt{2} \cdot 1.0000000001", r"\sqrt{2}", False),
        ("(0.333333,1)", r"(\frac13,1)", True),
        ("(5.0000001,1)", "(5,1)", False),
        # equations and values
        ("2+3=5", "5", True),
        ("2x+y=8", "8", False),
        (r"\forall x>0, f(x)=0", "f(x)=0", False),
        (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}", True),
        (r"\sqrt{x^2}", "x", False),
        # factors and lists in any order
        ("xy", "yx", True),
        ("2a", "2A", False),
        ("2abc+1", "1+2abc", True),
        ("3, 5 and 7", "7,5,3", True),
        ("2 or 3", "6 or 1", False),
        (r"\sin x", r"\sin^{-1} x", False),
        # names without their backslash
        ("cos(x)+1", r"1+\cos x", True),
        ("ln 2", r"\frac{\ln 4}{2}", True),
        ("2*pi*r", r"2\pi r", True),
        ("y=5 and x=3", "x=3, y=5", True),
        ("x=3 and y=5", "x=5, y=3", False),
    ],
)
async def test_equal(grader: MathGrader, a: str, b: str, equal: bool) -> None:
    assert await grader.equal(a, b) is equal
    assert await grader.equal(b, a) is equal


@pytest.mark.asyncio(loop_scope="module")
async def test_clusters_are_named_by_their_lowest_node(grader: MathGrader) -> None:
    answers = nodes("(x+1)^2", None, "7", "x^2+2x+1", "07.0", "8")
    expected = nodes("(x+1)^2", None, "7", "(x+1)^2", "7", "8")
    assert await grader.cluster(answers) == expected
    assert await grader.cluster(dict(reversed(answers.items()))) == expected
    assert await grader.cluster({}) == {}


@pytest.mark.timeout(60)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_hopeless_comparison_is_cut_and_the_worker_goes_on(
    grader: MathGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(grader, "_limit_s", 1.0)
        assert not await grader.equal("9^{9^{9^{9}}}", r"\sqrt{3}")
    assert await grader.equal(r"\sqrt{4}", "2")


async def test_spelling_needs_no_worker() -> None:
    grader = MathGrader(command=("/nonexistent",))
    assert await grader.equal(r"\frac12", "0.5")
    assert not await grader.equal("5", "6")
    found = await grader.cluster(nodes("B", r"\text{(B)}", "B: 5", "B+5", "5", "5.0", "Monday"))
    assert list(found.values()) == ["B", "B", "B", "B+5", "5", "5", "Monday"]
    assert grader.worker.pid is None


async def test_the_worker_starts_before_its_first_question() -> None:
    grader = MathGrader()
    for answer in ("12", "\\frac{1}{2}", "-0.5", "Paris"):
        grader.expect(answer)
    await asyncio.sleep(0.05)
    assert grader.worker.pid is None
    for _ in range(2):
        grader.expect("x+1")
    async with asyncio.timeout(60):
        while grader.worker.pid is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    pid = grader.worker.pid
    assert await grader.equal("x+1", "1+x")
    assert grader.worker.pid == pid
    await grader.close()
    assert grader.worker.pid is None


async def test_a_worker_that_can_not_start_or_dies_leaves_spelling() -> None:
    python = (sys.executable, "-c")
    dies = (*python, READY + "sys.stdin.readline()")
    for command in [("/nonexistent",), (*python, "print('hello')"), dies]:
        grader = MathGrader(command=command)
        answers = nodes(*(f"x+{i}" for i in range(5)), "x + 1")
        assert await grader.cluster(answers) == answers | {NodeId(6): "x+1"}
        assert grader.worker.pid is None


async def test_a_worker_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "GRACE_S", 0.1)
    hang = (sys.executable, "-c", READY + "import time; time.sleep(60)")
    grader = MathGrader(limit_s=0.1, command=hang)
    assert not await grader.equal("x", "y")
    assert grader.worker.pid is None
    for other in "abcdef":  # after three strikes the answer is not asked about again
        assert not await grader.equal("x", other)
    assert len(grader._results) == grading.MAX_STRIKES


async def test_a_cancelled_question_does_not_answer_the_next() -> None:
    slow = """import time
for _ in sys.stdin: time.sleep(0.4); print('{"equal": true}', flush=True)"""
    grader = MathGrader(command=(sys.executable, "-c", READY + slow))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await grader.equal("x", "y")
    assert await grader.equal("a", "b")
    await grader.close()
    assert grader.worker.pid is None


async def test_questions_to_the_worker_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def refuse(self: MathGrader, a: str, b: str) -> bool:
        asked.append((a, b))
        return False

    monkeypatch.setattr(MathGrader, "_verify", refuse)
    monkeypatch.setattr(grading, "MAX_COMPARISONS", 10)
    answers = nodes(*(f"x+{i}" for i in range(30)))
    assert await MathGrader().cluster(answers) == answers
    assert len(asked) == 10


@pytest.mark.parametrize("module", ["mathematics", "embedding_groups"])
def test_the_daemon_imports_nothing_of_the_workers(module: str) -> None:
    heavy = {"math_verify", "sympy", "torch", "transformers", "numpy", "vllm"}
    code = f"import sys, flashedge.answers.workers.{module}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=find_package_parent())


def test_the_worker_ends_with_its_parent() -> None:
    command = [sys.executable, "-m", grading.__name__]
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "cwd": find_package_parent()}
    done = subprocess.run(command, timeout=60, check=True, **quiet)
    assert done.stdout == b'{"ready": true}\n'


async def test_the_log_says_that_a_worker_did_not_answer_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(line_worker, "START_LIMIT_S", 0.2)
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    worker = LineWorker("slow", command, fallback="nothing is compared")
    assert not await worker.start()
    assert worker.pid is None
    assert "(no answer within 0 s); nothing is compared" in caplog.text

"""`solve`: one problem by search, the tree growing on stderr, the answer last on stdout.

With `--input` a file of them: see `cli.batch`.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.daemon_cmds import ready_client
from flashedge.cli.solve import batch
from flashedge.cli.solve.strategy_flags import exit_body, named_values
from flashedge.config import load_config
from flashedge.errors import ConfigError, FlashEdgeError, RequestError

FRAMES_PER_S = 10.0
_STRATEGY = re.compile(r"^([a-z_]+(?:-[a-z_]+)*)(?:-(\d+))?$")


def solve(
    problem: Annotated[
        str | None, typer.Argument(help="The problem; '-' reads it from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the problem from a file.")] = None,
    source: Annotated[
        Path | None, typer.Option("--input", help="Problems, a JSON object a line.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", help="Results of --input, a line each.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs of --input in flight.")] = None,
    budget_tokens_total: Annotated[
        int | None, typer.Option(help="Tokens of all trees of --input together.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try failed problems of --output again.")
    ] = False,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="beam, rebase, mcts, …; beam-16 is beam with n 16. See docs/strategies.md."
        ),
    ] = None,
    n: Annotated[int | None, typer.Option("-n", help="Paths to complete.")] = None,
    branching: Annotated[int | None, typer.Option(help="Children of each kept path.")] = None,
    aggregate: Annotated[
        str | None, typer.Option(help="Path score from step scores: last, min, prod, mean.")
    ] = None,
    selection: Annotated[
        str | None, typer.Option(help="Choice of the answer: weighted, majority, best.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same tree.")] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    top_p: Annotated[float | None, typer.Option()] = None,
    top_k: Annotated[int | None, typer.Option()] = None,
    max_step_tokens: Annotated[int | None, typer.Option(help="Longest step.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Depth of the tree at most.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest path.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(help="Tokens of the whole tree.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds, then answer.")] = None,
    pair: Annotated[str | None, typer.Option(help="Pair to solve with.")] = None,
    early_exit: Annotated[
        bool | None,
        typer.Option("--early-exit/--no-early-exit", help="Stop when the answer is settled."),
    ] = None,
    exit_policy: Annotated[
        str | None,
        typer.Option(help="static, every_5, every_step, length, initial_curve, dynamic_curve."),
    ] = None,
    threshold: Annotated[
        list[str] | None, typer.Option(help="Least certainty to stop at: entropy=0.8, reward=0.9.")
    ] = None,
    detect: Annotated[
        int | None, typer.Option(help="Paths, rollouts or probes before the first look.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="A strategy's own option: c=0.5, window=4.")
    ] = None,
    answers: Annotated[
        str | None, typer.Option(help="boxed, or text: open-ended, grouped by their wording.")
    ] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="The stock loop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No tree, only the answer.")] = False,
) -> None:
    """Solve a problem by verifier-guided search."""
    strategy, n = split_strategy(strategy, n)
    given = {
        "pair": pair,
        "strategy": strategy,
        "n": n,
        "branching": branching,
        "aggregate": aggregate,
        "selection": selection,
        "seed": seed,
        "temperature": finite("temperature", temperature),
        "top_p": finite("top_p", top_p),
        "top_k": top_k,
        "max_step_tokens": max_step_tokens,
        "max_steps": max_steps,
        "max_tokens": max_tokens,
        "token_budget": budget_tokens,
        "deadline_s": finite("deadline", deadline),
        "baseline": baseline or None,
        "answers": answers,
        "early_exit": exit_body(early_exit, exit_policy, threshold, detect),
        "options": named_values("--set", option) or None,
    }
    settings = {k: v for k, v in given.items() if v is not None}
    config = load_config({"pair": pair})
    several = {"jobs": jobs, "budget_tokens_total": budget_tokens_total}
    if source is not None:
        if problem is not None or file is not None:
            raise RequestError("give either --input or one problem", param="input")
        batch.solve_batch(
            settings,
            source,
            target,
            config,
            **several,
            retry_failed=retry_failed,
            as_json=as_json,
            quiet=quiet,
        )
        return
    batch.check_alone(output=target, **several, retry_failed=retry_failed)
    body: dict[str, Any] = {"problem": read_problem(problem, file), **settings}
    with ready_client(config) as client:
        result = follow(client, body, show=not quiet, live=not as_json)
    if as_json:
        output.print_json(result)
    else:
        print_result(result, quiet=quiet)


def follow(client: Any, body: dict[str, Any], *, show: bool, live: bool = True) -> dict[str, Any]:
    """Solve, drawing the tree on stderr; the run's object. Interrupted: cancels the run.

    Raises the run's error, or RequestError when somebody cancelled it.
    """
    from flashedge import events
    from flashedge.cli.solve.tree_view import TreeView, fold
    from flashedge.client import sync_client as remote

    view = TreeView()
    try:
        with drawing(show, live) as draw:
            for _, event in client.solve(body):
                view = fold(view, event)
                draw(view, isinstance(event, events.TERMINAL))
                match event:
                    case events.RunFinished():
                        return dict(event.result)
                    case events.RunFailed():
                        raise remote.from_event(event)
                    case events.RunCancelled():
                        raise RequestError(f"run {view.run} was cancelled: {event.reason}")
    except KeyboardInterrupt:
        if view.run is not None:
            with_suppressed(client.cancel, view.run)
            output.note(f"cancelled run {view.run}")
        raise
    raise FlashEdgeError(f"run {view.run} ended without a result")


def drawing(show: bool, live: bool) -> Any:
    """A context whose value is `draw(view, final)`.

    On a terminal the tree grows in place; elsewhere it is printed once, when the run is over.
    """
    from contextlib import contextmanager

    from flashedge.cli.solve.live_tree import render
    from flashedge.cli.solve.tree_view import TreeView

    @contextmanager
    def context() -> Iterator[Any]:
        console = output.stderr()
        if not show or (not live and not console.is_terminal):
            yield lambda view, final: None
        elif not console.is_terminal:

            def print_last(view: TreeView, final: bool) -> None:
                if final:
                    console.print(render(view, width=console.width))

            yield print_last
        else:
            from rich.live import Live

            with Live(console=console, auto_refresh=False, transient=False) as shown:
                drawn_at = 0.0

                def draw(view: TreeView, final: bool) -> None:
                    nonlocal drawn_at
                    now = time.monotonic()
                    if final or now - drawn_at >= 1 / FRAMES_PER_S:
                        drawn_at = now
                        height = None if final else console.height - 1
                        tree = render(view, width=console.width, height=height)
                        shown.update(tree, refresh=True)

                yield draw

    return context()


def print_result(result: dict[str, Any], *, quiet: bool) -> None:
    """The chosen path and the figures on stderr, the answer alone on stdout."""
    from rich.text import Text

    answer = result.get("answer")
    if not quiet:
        console = output.stderr()
        console.print()
        console.print(Text(str(result.get("text", "")).strip()))
        console.print()
        votes = result.get("votes") or []
        if len(votes) > 1:
            said = ", ".join(f"{v['answer']} ({v['count']}, {v['weight']:.2f})" for v in votes[:6])
            output.note(f"votes (paths, weight): {said}")
        usage, timing = result.get("usage") or {}, result.get("timing") or {}
        output.note(
            f"run {result.get('id')}: {usage.get('tree_tokens', 0):,} tokens in"
            f" {timing.get('total_s', 0.0):.2f} s"
        )
        if result.get("cut_by"):
            output.note(f"stopped early: {result['cut_by']}")
        if result.get("early_exit_note"):
            output.note(result["early_exit_note"])
        if answer is None:
            output.note("no path holds a boxed answer; this is the best path")
    print(answer if answer is not None else str(result.get("text", "")).strip(), flush=True)


def read_problem(problem: str | None, file: Path | None) -> str:
    """The problem's text from the one place given. Raises RequestError or ConfigError."""
    if (problem is None) == (file is None):
        raise RequestError(
            "give the problem once",
            hint="flashedge solve 'text', or -, or --file F",
            param="problem",
        )
    try:
        if file is not None:
            text = file.read_text(encoding="utf-8")
        elif problem == "-":
            text = sys.stdin.read()
        else:
            text = problem or ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"can't read {file or 'standard input'}: {reason}") from error
    if not text.strip():
        raise RequestError("the problem is empty; give some text", param="problem")
    return text.strip()


def split_strategy(strategy: str | None, n: int | None) -> tuple[str | None, int | None]:
    """("beam", 16) of "beam-16". Raises RequestError when it says another n than -n."""
    if strategy is None:
        return None, n
    match = _STRATEGY.match(strategy)
    if match is None:
        raise RequestError(f"strategy {strategy!r} is not a name or name-n", param="strategy")
    name, count = match[1].replace("-", "_"), match[2]
    if count is not None and n is not None and int(count) != n:
        raise RequestError(f"--strategy {strategy} and -n {n} contradict each other", param="n")
    return name, int(count) if count is not None else n


def finite(name: str, value: float | None) -> float | None:
    """JSON has no NaN, so it is refused here. Raises RequestError."""
    if value is not None and not math.isfinite(value):
        raise RequestError(f"{name} is {value}; it must be a number", param=name)
    return value


def with_suppressed(call: Any, *args: Any) -> None:
    """Call, and leave it at that if the daemon doesn't answer."""
    import contextlib

    with contextlib.suppress(FlashEdgeError):
        call(*args)

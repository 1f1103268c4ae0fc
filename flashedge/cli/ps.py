"""`ps`: the daemon, its engines, and the programs that run or wait."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from flashedge.cli import output
from flashedge.cli.output import Json
from flashedge.cli.runs import shorten_ids
from flashedge.client.words import format_count, format_duration
from flashedge.config import load_config
from flashedge.sizes import format_size
from flashedge.types import UNUSED

PROGRAM_COLUMNS = ("place", "program", "client", "kind", "waited", "median", "tail", "starts in")
LONGEST_KEY = 16
"""Most characters of a program's name on a terminal, which keeps its row on one line."""


def ps(as_json: Json = False) -> None:
    """Show the daemon, its engines and their load, and the programs that run or wait.

    The cache hits of an engine are the share of its prompts' tokens that were in its prefix cache.
    Latencies are those of the last plain requests and searches: the time to the first token, and
    the time of each token after it (over all paths of a search), as p50, p90 and p99.

    A program shows its place in the queue (`runs` if it has started, `open` if it is a request that
    no engine has answered yet), how long it has waited, the predicted length of one of its answers
    or paths (half are longer than the median, a tenth longer than the tail), and when it is
    expected to start.

    Exits 1 if no daemon is running, or if one has started and an engine is neither ready nor
    unloaded, nor unused as the verifier of a pair that has none.
    """
    from flashedge.daemon import control as daemon_control

    config = load_config()
    record = daemon_control.find_daemon(config)
    if record is None:
        if as_json:
            output.print_json({"daemon": None})
        else:
            output.note("No daemon is running. Start one: flashedge up")
        raise typer.Exit(output.NO_RESULT)
    with daemon_control.connect(config) as client:
        health = client.health(timeout_s=5.0)
        status = client.status() if health["status"] != "starting" else {}
    pairs = status.get("pairs") or {}
    if as_json:
        output.print_json(
            {"daemon": {**dataclasses.asdict(record), "url": record.url}, **status, **health}
        )
    else:
        loaded = status.get("loaded") or []
        others = "" if loaded in ([], [record.pair]) else f", loaded are {', '.join(loaded)}"
        output.say(
            f"{health['status']}: pair {record.pair}{others} at {record.url},"
            f" process {record.pid}, up {format_duration(time.time() - record.started_at)}"
        )
        _print_status(status, is_ready=health["status"] == "ready")
        if health.get("detail"):
            output.say(health["detail"])
    every = [engine for pair in pairs.values() for engine in pair["engines"].values()]
    if any(engine.get("state") not in ("ready", "unloaded", UNUSED) for engine in every):
        raise typer.Exit(output.NO_RESULT)


def _print_status(status: Mapping[str, Any], *, is_ready: bool) -> None:
    """Print all but the first line and the detail. `status` is empty while the daemon starts."""
    pairs, engines = status.get("pairs") or {}, status.get("engines") or {}
    runs, scheduling = status.get("runs") or {}, status.get("scheduling") or {}
    counts = f"{format_count(runs.get('running', 0), 'run')}, {runs.get('queued', 0)} waiting"
    policy = scheduling.get("policy")
    output.say(counts if policy is None else f"{counts}, policy {policy}")
    self_test = status.get("self_test") or {}
    lines = [describe_kernels(self_test)]
    if failure := self_test.get("failure"):
        lines.append(f"the self-test did not finish ({failure}): no request can be deterministic")
    elif not self_test and is_ready and status.get("loaded"):
        lines.append("the self-test is still running; deterministic requests wait for it")
    generator = engines.get("generator") or {}
    lines += [describe_drafts(generator), describe_replays(generator), describe_places(engines)]
    lines += describe_kv(engines)
    for line in filter(None, lines):
        output.say(line)
    print_engines(pairs)
    lines = [*describe_latency(status.get("latency") or {}), describe_card_users(pairs)]
    for line in filter(None, lines):
        output.say(line)
    if programs := scheduling.get("programs"):
        print_programs(programs)
    for boost in scheduling.get("boosts") or ():
        print_boost(boost)


def describe_kernels(self_test: Mapping[str, Any]) -> str | None:
    """Say whether the same request gives the same tree, according to the self-test. None before its
    verdict."""
    is_invariant = self_test.get("batch_invariant")
    if is_invariant is None:
        return None
    if is_invariant:
        tokens = self_test.get("invariant_tokens")
        limit = "" if tokens is None else f", tested up to {tokens} tokens"
        return f"kernels are batch-invariant{limit}: the same request gives the same tree"
    difference = self_test.get("max_logprob_difference")
    shown = "" if difference is None else f" (log-probabilities differ by up to {difference:.2g})"
    return (
        f"kernels are not batch-invariant{shown}: the same request can give another tree;"
        " ask for deterministic, or on a card set batch_invariant"
    )


def describe_drafts(generator: Mapping[str, Any]) -> str | None:
    """How many drafted tokens were right since the engine started. None if there were none."""
    counts = (generator.get("view") or {}).get("token_drafts") or {}
    if not (drafted := counts.get("drafted_tokens")):
        return None
    share = counts["accepted_tokens"] / drafted
    return f"token drafts: {share:.0%} of {drafted:,} were right"


def describe_kv(engines: Mapping[str, Any]) -> Iterator[str]:
    """What KV has moved since the engines started, or why none does. Nothing if none has yet."""
    if why := next(filter(None, (engine.get("kv_fixed") for engine in engines.values())), None):
        yield f"the KV memory is divided once, when the engines start: {why}"
    for name, engine in engines.items():
        moved = (engine.get("view") or {}).get("kv_moved") or {}
        if any(moved.values()):
            sizes = {way: format_size(size) for way, size in moved.items()}
            yield (
                f"KV of the {name}: {sizes['saved_bytes']} went to host memory,"
                f" {sizes['loaded_bytes']} came back; it gave up {sizes['unmapped_bytes']} of"
                f" memory and took {sizes['mapped_bytes']}"
            )


def describe_replays(generator: Mapping[str, Any]) -> str | None:
    """What deterministic requests have cost since the engine started. None if there were none."""
    counts = (generator.get("view") or {}).get("replays") or {}
    if not counts.get("verified_tokens"):
        return None
    passes = counts["verify_passes"] + counts["prefill_passes"]
    return (
        f"deterministic requests: {counts['verified_tokens']} tokens verified,"
        f" {format_count(counts['rollbacks'], 'rollback')}"
        f" ({counts['recomputed_tokens']} tokens drawn again),"
        f" {passes} passes in {counts['pass_us'] / 1e6:.1f} s"
    )


def describe_places(engines: Mapping[str, Any]) -> str | None:
    """Which cards the engines run on, and whether each keeps its KV memory. None on a CPU."""
    if not any(engine.get("cards") for engine in engines.values()):
        return None
    found = ", ".join(f"{name} on {engine.get('cards')}" for name, engine in engines.items())
    is_own = any(engine.get("kv_memory") == "own" for engine in engines.values())
    return f"{found}; each keeps its KV memory" if is_own else found


def describe_latency(latency: Mapping[str, Any]) -> Iterator[str]:
    """A line for plain requests and one for searches, each only if some have finished."""
    for kind, nouns in (("chat", "plain requests"), ("run", "searches")):
        found = latency.get(kind) or {}
        if not found.get("requests"):
            continue
        first = ", ".join(f"{name} {s:.3g}" for name, s in found["first_token_s"].items())
        line = f"{nouns}, the last {found['requests']:,}: first token {first} s"
        if each := found["token_s"]:
            shown = ", ".join(f"{name} {1000 * s:.3g}" for name, s in each.items())
            line += f"; each next one {shown} ms"
        yield line


def describe_card_users(pairs: Mapping[str, Any]) -> str | None:
    """The other programs on the cards. None if there are none."""
    from flashedge.profiler.card_watch import CardUser, describe_user

    found = dict.fromkeys(
        describe_user(CardUser(**user))
        for pair in pairs.values()
        for user in pair.get("card_users") or ()
    )
    return f"other programs hold memory of the card: {', '.join(found)}" if found else None


def print_engines(pairs: Mapping[str, Any]) -> None:
    """Print the engines of all loaded pairs, and the runs of each pair if there are several."""
    several = len(pairs) > 1
    rows: list[tuple[object, ...]] = []
    for pair, state in pairs.items():
        if several:
            runs = state["runs"]
            output.say(f"{pair}: {format_count(runs['running'], 'run')}, {runs['queued']} waiting")
        for name, engine in state["engines"].items():
            view = engine.get("view") or {}
            blocks = f"{view['blocks_used']}/{view['quota_blocks']}" if view else None
            hits = view.get("cache_hits")
            rows.append(
                (
                    f"{pair} {name}" if several else name,
                    *(engine.get(field) for field in ("state", "pid", "restarts")),
                    view.get("running"),
                    view.get("waiting"),
                    blocks,
                    None if hits is None else f"{hits:.0%}",
                )
            )
    heads = ("engine", "state", "pid", "restarts", "running", "waiting", "KV blocks", "cache hits")
    output.print_table(heads, rows, "no engines yet")


def print_programs(programs: Sequence[Mapping[str, Any]]) -> None:
    output.say("\nprograms (median and tail: predicted tokens of one answer or path)")
    names = shorten_keys([str(program["key"]) for program in programs])
    rows = [_format_row(*item) for item in zip(names, programs, strict=True)]
    output.print_lines(PROGRAM_COLUMNS, rows, "no programs")


def print_boost(boost: Mapping[str, Any]) -> None:
    """Print how many rollouts each boosted run of a pair may have in flight."""
    granted: Mapping[str, int] = boost["runs"]
    budget = format_count(boost["budget"], "rollout")
    given = f"{sum(granted.values())} of {budget} ({boost['reason']})"
    output.say(f"\nboosted runs of {boost['pair']}: {given}")
    rows = zip(shorten_ids(list(granted)), granted.values(), strict=True)
    output.print_lines(("run", "rollouts"), rows, "no runs")


def shorten_keys(keys: Sequence[str]) -> list[str]:
    """Names for a terminal: ids of runs as `runs ls` shortens them, other long names cut."""
    ids = [key for key in keys if key.startswith("run-")]
    short = dict(zip(ids, shorten_ids(ids), strict=True))
    names = [short.get(key, key) for key in keys]
    if not output.stdout().is_terminal:
        return names
    return [name if len(name) <= LONGEST_KEY else f"{name[: LONGEST_KEY - 1]}…" for name in names]


def _format_row(name: str, program: Mapping[str, Any]) -> tuple[object, ...]:
    """Build the row of a program. One that is not queued shows `runs`, or `open` if it is a request
    that no engine has answered yet."""
    start_s, place = program.get("starts_in_s"), program.get("place")
    running = "runs" if program.get("has_started") else "open"
    lengths = (program.get("median_tokens"), program.get("tail_tokens"))
    return (
        running if place is None else f"#{place + 1}",
        name,
        program.get("client") or None,
        program.get("kind"),
        format_duration(program.get("waited_s") or 0.0),
        *(None if tokens is None else f"{tokens:,.0f}" for tokens in lengths),
        None if start_s is None else f"~{format_duration(start_s)}",
    )

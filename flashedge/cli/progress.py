"""A progress bar on stderr, for terminals only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flashedge.cli import output


@contextmanager
def show_bar(what: str, total: int, *, done: int = 0, unit: str) -> Iterator[Callable[[int], None]]:
    """Show a bar that starts at `done` of `total`. Yields a function to call with the number of
    units done since its last call."""
    from rich import progress

    columns = (
        output.build_text_column("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        output.build_text_column("{task.fields[unit]},"),
        progress.TimeElapsedColumn(),
        output.build_text_column("elapsed,"),
        progress.TimeRemainingColumn(),
        output.build_text_column("left"),
    )
    console = output.stderr()
    bars = progress.Progress(*columns, console=console, disable=not console.is_terminal)
    with bars:
        task = bars.add_task(what, total=total, completed=done, unit=unit)
        yield lambda count: bars.advance(task, count)

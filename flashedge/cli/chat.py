"""`chat`: a conversation in the terminal, plain or with a search for each answer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.daemon_cmds import ready_client
from flashedge.cli.solve.command import finite, follow, split_strategy
from flashedge.config import Config, load_config
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.types import MAX_SEED, Message

HELP = """\
/search [NAME|off]  answer by search: /search beam-16, /search best_of_n-8
/seed [N|off]       draw with this seed
/tree               the tree of the last search
/new                forget the conversation
/exit               leave (also ctrl-d); ctrl-c stops an answer
/help               this list"""


def chat(
    pair: Annotated[str | None, typer.Option(help="Pair to talk to.")] = None,
    search: Annotated[str | None, typer.Option(help="Answer by search, e.g. beam-16.")] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Talk to the generator; /search lets the verifier choose."""
    finite("temperature", temperature)
    config = load_config({"pair": pair})
    options = {"temperature": temperature, "max_tokens": max_tokens}
    with ready_client(config) as client:
        talk = Conversation(client, config.pair, seed=seed, system=system, options=options)
        if search is not None:
            talk.set_search(search)
        with history(config):
            talk.loop()


class Conversation:
    """The messages so far and how the next is answered."""

    def __init__(
        self,
        client: Any,
        pair: str,
        *,
        seed: int | None,
        system: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self._client = client
        self._pair = pair
        self._seed = seed
        self._options = {k: v for k, v in options.items() if v is not None}
        self._opening = [Message(role="system", content=system)] if system else []
        self._messages = list(self._opening)
        self._search: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._commands: Mapping[str, Callable[[str], None]] = {
            "search": self.set_search,
            "seed": self.set_seed,
            "tree": self.show_tree,
            "new": self.forget,
            "help": lambda _: print(HELP),
        }

    def loop(self) -> None:
        """Read and answer until the end of input or /exit."""
        if sys.stdin.isatty():
            output.note(f"pair {self._pair}; /help lists the commands")
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                print(file=sys.stderr)
                continue
            if line in ("/exit", "/quit"):
                return
            if line:
                self.take(line)

    def take(self, line: str) -> None:
        """One line: a command or a message. Errors are told and the conversation goes on."""
        try:
            if line.startswith("/"):
                self._command(line)
            else:
                self._answer(line)
        except FlashEdgeError as error:
            output.print_error(error)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            output.note("stopped")

    def set_search(self, text: str) -> None:
        if text in ("off", "none"):
            self._search = None
        elif text:
            strategy, n = split_strategy(text, None)
            self._search = {"strategy": strategy} | ({"n": n} if n else {})
        said = self._search or {}
        output.note("search: " + (" ".join(str(v) for v in said.values()) if said else "off"))

    def set_seed(self, text: str) -> None:
        if text == "off":
            self._seed = None
        elif text:
            if not text.isdigit() or int(text) > MAX_SEED:
                raise RequestError(f"seed is {text!r}; it must be an integer in [0, {MAX_SEED}]")
            self._seed = int(text)
        output.note(f"seed: {'off' if self._seed is None else self._seed}")

    def show_tree(self, _: str = "") -> None:
        if self._last is None:
            raise RequestError("no search yet", hint="/search beam-16, then ask")
        from flashedge.cli.solve.live_tree import render
        from flashedge.cli.solve.tree_view import from_result

        console = output.stdout()
        console.print(render(from_result(self._last), width=console.width))

    def forget(self, _: str = "") -> None:
        self._messages = list(self._opening)
        self._last = None
        output.note("a new conversation")

    def _command(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        run = self._commands.get(name)
        if run is None:
            raise RequestError(f"there is no command /{name}", hint="/help lists them")
        run(rest.strip())

    def _answer(self, text: str) -> None:
        messages = [*self._messages, Message(role="user", content=text)]
        reply = self._plain(messages) if self._search is None else self._searched(messages)
        if reply:
            self._messages = [*messages, Message(role="assistant", content=reply)]

    def _plain(self, messages: list[Message]) -> str:
        said: list[str] = []
        pieces = self._client.chat(messages, model=self._pair, seed=self._seed, **self._options)
        finish = None
        with contextlib.closing(pieces):
            for piece in pieces:
                said.append(piece.text)
                finish = piece.finish or finish
                print(piece.text, end="", flush=True)
        print()
        if finish == "length":
            output.note("cut at the token limit")
        return "".join(said)

    def _searched(self, messages: list[Message]) -> str:
        body: dict[str, Any] = {
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            "pair": self._pair,
            **(self._search or {}),
            **self._options,
        }
        if self._seed is not None:
            body["seed"] = self._seed
        self._last = follow(self._client, body, show=True)
        reply = str(self._last.get("text", "")).strip()
        print(reply)
        return reply


@contextlib.contextmanager
def history(config: Config) -> Any:
    """Line editing, with the lines of earlier conversations kept in the state folder."""
    if not sys.stdin.isatty():
        yield
        return
    import readline

    file: Path = config.state_dir / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(file)

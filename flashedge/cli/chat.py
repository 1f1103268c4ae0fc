"""`chat`: a conversation in the terminal, plain or with a search for each answer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from flashedge.cli import output
from flashedge.cli.chat_input import keep_history, read_message
from flashedge.cli.connection import connect_ready
from flashedge.cli.solve.result import warn_about
from flashedge.cli.solve.run_display import follow_run
from flashedge.cli.solve.strategy_flags import (
    check_finite,
    complete_strategy,
    parse_strategy_flags,
)
from flashedge.config import load_config
from flashedge.errors import FlashEdgeError, RequestError
from flashedge.literal import PieceJoiner, join_surrogates
from flashedge.models.registry import find_pair
from flashedge.types import MAX_SEED, Message

COMMANDS = """\
/search [NAME|off]  answer by search: /search beam-16, /search best_of_n-8
/seed [N|off]       sample with this seed
/tree               show the tree of the last search
/new                forget the conversation
/exit               leave (also ctrl-d); ctrl-c stops an answer
/help               show this list

A line that ends with \\ continues on the next one. \"\"\" begins and ends a message of many lines.
A pasted text is one message."""
EPILOG = """\
[bold]Examples[/]
  flashedge chat --search beam-16
  flashedge chat --system "Answer briefly." < questions.txt
"""


def chat(
    pair: Annotated[
        str | None,
        typer.Option(metavar="PAIR", help="Pair to talk to.", show_default="bundled"),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[-N]",
            help="Answer by search, e.g. beam-16; see `flashedge solve --help`.",
            autocompletion=complete_strategy,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The same seed gives the same answers."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message for the model.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="Sampling temperature; 0 is greedy.")
    ] = None,
    thinking: Annotated[
        bool | None,
        typer.Option(
            "--thinking/--no-thinking",
            help="Let a model that can think do so before its answers, or not.",
            show_default="the pair's",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most tokens of an answer.")
    ] = None,
) -> None:
    """Talk to the generator, or let a search with the verifier answer.

    Type /help in the chat for its commands.
    """
    check_finite("temperature", temperature)
    config = load_config({"pair": pair})
    chosen = find_pair(config.pair, config)
    options: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
    if thinking is not None:
        options["chat_template_kwargs"] = {"enable_thinking": thinking}
    with connect_ready(config) as client:
        conversation = Conversation(
            client,
            config.pair,
            is_single_turn=chosen.single_turn,
            seed=seed,
            system=system,
            options=options,
        )
        if search is not None:
            conversation.set_search(search)
        with keep_history(config):
            conversation.loop()


class Conversation:
    """The messages so far, and how the next one is answered."""

    def __init__(
        self,
        client: Any,
        pair: str,
        *,
        is_single_turn: bool = False,
        seed: int | None,
        system: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self._client = client
        self._pair = pair
        self._is_single_turn = is_single_turn
        self._has_warned = False
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
            "help": lambda _: output.say(COMMANDS),
        }

    def loop(self) -> None:
        """Read and answer messages until the end of input or /exit."""
        if sys.stdin.isatty():
            output.note(f"pair {self._pair}; /help lists the commands")
        for message in _read_messages():
            if message in ("/exit", "/quit"):
                return
            self.handle(message)

    def handle(self, message: str) -> None:
        """Run a command or answer a message. An error is printed; the conversation continues."""
        try:
            if message.startswith("/"):
                self._run_command(message)
            else:
                self._answer(message)
        except FlashEdgeError as error:
            output.print_error(error)
        except KeyboardInterrupt:
            output.note("\nstopped")

    def set_search(self, text: str) -> None:
        if text in ("off", "none"):
            self._search = None
        elif text:
            strategy, n = parse_strategy_flags(text, None)
            self._search = {"strategy": strategy} | ({"n": n} if n is not None else {})
        shown = " ".join(str(value) for value in (self._search or {}).values())
        output.note(f"search: {shown or 'off'}")

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
            raise RequestError("no search yet", hint="type /search beam-16, then a question")
        from flashedge.cli.solve.live_tree import render
        from flashedge.client.run_fold import build_view

        console = output.stdout()
        console.print(render(build_view(self._last), width=console.width))

    def forget(self, _: str = "") -> None:
        self._messages = list(self._opening)
        self._last = None
        output.note("a new conversation")

    def _run_command(self, line: str) -> None:
        name, _, rest = line[1:].partition(" ")
        run = self._commands.get(name)
        if run is None:
            raise RequestError(f"there is no command /{name}", hint="/help lists the commands")
        run(rest.strip())

    def _answer(self, text: str) -> None:
        if self._is_single_turn and len(self._messages) > len(self._opening):
            self._messages = list(self._opening)
            if not self._has_warned:
                self._has_warned = True
                output.note(
                    f"Pair {self._pair} answers one problem at a time:"
                    " earlier messages are not sent."
                )
        messages = [*self._messages, Message(role="user", content=text)]
        reply = self._generate(messages) if self._search is None else self._run_search(messages)
        if reply:
            self._messages = [*messages, Message(role="assistant", content=reply)]

    def _generate(self, messages: list[Message]) -> str:
        texts: list[str] = []
        pieces = self._client.chat(messages, model=self._pair, seed=self._seed, **self._options)
        answer, thoughts = PieceJoiner(), PieceJoiner()
        finish, thought = None, ""
        with contextlib.closing(pieces):
            for piece in pieces:
                if piece.reasoning:
                    thought += piece.reasoning
                    output.show_thinking(thoughts.join(piece.reasoning))
                if piece.text and thought and not any(texts):
                    output.note("\n")
                texts.append(piece.text)
                finish = piece.finish or finish
                output.print_data(answer.join(piece.text), end="")
        output.print_data(answer.end())
        if finish == "length":
            output.note("The answer reached the most tokens that it may have and was cut.")
        return join_surrogates("".join(texts))

    def _run_search(self, messages: list[Message]) -> str:
        body: dict[str, Any] = {
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            "pair": self._pair,
            **(self._search or {}),
            **self._options,
        }
        if self._seed is not None:
            body["seed"] = self._seed
        self._last = follow_run(self._client, body, show=True)
        reply = str(self._last.get("text", "")).strip()
        output.print_data(reply)
        if self._last.get("answer") is not None:
            warn_about(self._last)
        return reply


def _read_messages() -> Iterator[str]:
    """The messages and commands that the user types, to the end of input."""
    while True:
        try:
            message = read_message()
        except EOFError:
            return
        except KeyboardInterrupt:
            output.note("")
            continue
        if message:
            yield message

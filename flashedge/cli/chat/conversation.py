"""One conversation: its messages, its commands, and how the next message is answered and shown.

On a terminal a line stands between turns, and replies are shown as Markdown. Elsewhere replies are
raw text, each but the first below its turn's number and message.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flashedge.cli import output
from flashedge.cli.chat.saved import Opening, SavedChat, SavedChats, Turn
from flashedge.cli.solve.result import follow_run, print_figures, warn_about
from flashedge.cli.solve.strategy_flags import parse_strategy_flags
from flashedge.client.words import format_count
from flashedge.config import Config
from flashedge.errors import ConfigError, FlashEdgeError, RequestError, StoreError
from flashedge.literal import PieceJoiner, join_surrogates, show_in_line
from flashedge.types import MAX_SEED, Message

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult
    from rich.live import Live

LEAST_PAUSE_S = 0.1
"""Least time between two drawings of a reply that grows. Chosen by hand: with a second the text
would come in jumps, and nobody sees more than ten drawings a second."""
DRAWING_SHARE = 0.2
"""Largest share of the time that drawing may take: a long reply is drawn less often. Chosen by
hand: with much more, drawing would hold up the pieces; with much less, the text would jump."""
COMMANDS = """\
/search [NAME|off]  answer by search: /search beam-16, /search best_of_n-8
/seed [N|off]       sample with this seed
/tree               show the whole tree of the last search
/new                begin a new conversation
/exit, /quit        leave (also ctrl-d); ctrl-c stops an answer
/help               show this list

A line that ends with \\ continues on the next one. \"\"\" begins and ends a message of many lines.
A pasted text is one message."""


class Conversation:
    """The messages so far, and how the next one is answered."""

    def __init__(
        self,
        client: Any,
        pair: str,
        *,
        opening: Opening,
        chats: SavedChats | None,
        resumed: SavedChat | None = None,
        is_single_turn: bool = False,
        seed: int | None,
        options: Mapping[str, Any],
    ) -> None:
        """chats: where the conversation is kept; None keeps nothing. resumed: an earlier
        conversation that goes on, with the search of its last turn. is_single_turn: whether the
        model sees only the newest message. options: fields of each request; None is left out."""
        self._client = client
        self._pair = pair
        self._chats = chats
        self._saved = resumed
        self._is_single_turn = is_single_turn
        self._has_warned = False
        self._is_unsaved = False
        self._seed = seed
        self._options = {k: v for k, v in options.items() if v is not None}
        self._opening = opening
        system = opening.system
        self._start = [Message(role="system", content=system)] if system else []
        self._messages = list(self._start)
        self._search: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._unkept_runs: list[str] = []
        self._numbers = itertools.count(1)
        self._commands: Mapping[str, Callable[[str], None]] = {
            "search": self.set_search,
            "seed": self.set_seed,
            "tree": self.show_tree,
            "new": self.begin_conversation,
            "help": lambda _: output.say(COMMANDS),
        }
        for turn in resumed.turns if resumed else ():
            self._remember(turn.message, turn.reply)
        if resumed and resumed.turns and resumed.turns[-1].search:
            self._search = _parse_search(resumed.turns[-1].search)

    @property
    def prompt(self) -> str:
        search = self._name_search()
        return f"{show_in_line(self._pair)}{search and ' · '}{search} > "

    def loop(self) -> None:
        """Read and answer messages until the end of input or /exit."""
        is_typed = sys.stdin.isatty()
        if is_typed:
            self._greet()
        try:
            for message in self._read_messages():
                if message in ("/exit", "/quit"):
                    break
                self.handle(message)
        finally:
            if self._saved is not None:
                self._saved.close()
            for run in self._unkept_runs:
                with contextlib.suppress(FlashEdgeError):
                    self._client.delete(run)
        if is_typed and self._chats and self._saved and not self._is_unsaved:
            output.note(f"kept as {self._saved.id}; to go on: flashedge chat --continue")

    def handle(self, message: str) -> None:
        """Run a command or answer a message. An error is printed, and the conversation goes on."""
        if not message.startswith("/"):
            is_typed = sys.stdin.isatty()
            number = next(self._numbers)
            with show_turn(number, self.prompt, message, is_typed=is_typed), _print_errors():
                self._answer(message)
            return
        name, _, rest = message[1:].partition(" ")
        with _print_errors():
            run = self._commands.get(name)
            if run is None:
                raise RequestError(f"there is no command /{name}", hint="/help lists the commands")
            run(rest.strip())

    def set_search(self, text: str) -> None:
        """Choose the search `text`, or none for `off`, and show it. An empty text only shows it.
        Raises NotFound, RequestError."""
        if text in ("off", "none"):
            self._search = None
        elif text:
            self._search = _parse_search(text)
        output.note(f"search: {self._name_search() or 'off'}")

    def set_seed(self, text: str) -> None:
        if text == "off":
            self._seed = None
        elif text:
            is_number = text.isdecimal() and len(text) <= len(str(MAX_SEED))
            if not is_number or int(text) > MAX_SEED:
                raise RequestError(f"seed is {text!r}; it must be an integer in [0, {MAX_SEED}]")
            self._seed = int(text)
        output.note(f"seed: {'off' if self._seed is None else self._seed}")

    def show_tree(self, _: str = "") -> None:
        if self._last is None:
            raise RequestError("there is no search yet", hint="type /search beam-16 and a question")
        from flashedge.cli.solve.live_tree import render
        from flashedge.client.run_view import build_view

        console = output.stdout()
        console.print(render(build_view(self._last), width=console.width))

    def begin_conversation(self, _: str = "") -> None:
        self._messages = list(self._start)
        self._last = None
        if self._saved is not None:
            self._saved.close()
        self._saved, self._is_unsaved = None, False
        output.note("a new conversation")

    def _greet(self) -> None:
        output.note(f"pair {self._pair}; /help lists the commands")
        if self._saved is None or not self._saved.turns:
            return
        count, last = len(self._saved.turns), self._saved.turns[-1]
        output.note(f"conversation {self._saved.id}, {format_count(count, 'turn')}; the last:")
        with show_turn(next(self._numbers), self.prompt, last.message, is_typed=False):
            print_reply(last.reply)

    def _read_messages(self) -> Iterator[str]:
        with contextlib.suppress(EOFError):
            while True:
                try:
                    message = read_message(self.prompt)
                except KeyboardInterrupt:
                    message = ""
                    output.note("")
                except UnicodeDecodeError as error:
                    raise ConfigError("can't read standard input: not UTF-8 text") from error
                if message:
                    yield message

    def _answer(self, text: str) -> None:
        if self._is_single_turn and self._messages != self._start:
            self._messages = list(self._start)
            if not self._has_warned:
                notice = "answers one problem at a time: earlier messages are not sent."
                output.note(f"Pair {self._pair} {notice}")
            self._has_warned = True
        messages = [*self._messages, Message(role="user", content=text)]
        if self._search is None:
            reply, run = self._generate(messages), None
        else:
            reply, run = self._run_search(messages)
        if reply:
            self._remember(text, reply)
            search = self._name_search() or None
            self._save(Turn(message=text, reply=reply, search=search, run=run, at=time.time()))

    def _remember(self, message: str, reply: str) -> None:
        turn = Message(role="user", content=message), Message(role="assistant", content=reply)
        self._messages = [*self._messages, *turn]

    def _generate(self, messages: list[Message]) -> str:
        texts: list[str] = []
        pieces = self._client.chat(messages, model=self._pair, seed=self._seed, **self._options)
        thoughts = PieceJoiner()
        finish, has_thought = None, False
        with contextlib.closing(pieces), stream_reply() as grow:
            for piece in pieces:
                if piece.reasoning:
                    has_thought = True
                    output.show_thinking(thoughts.join(piece.reasoning))
                if piece.text and has_thought and not any(texts):
                    output.note("\n")
                texts.append(piece.text)
                finish = piece.finish or finish
                grow(piece.text)
        if finish == "length":
            output.note("The answer reached its token limit and was cut.")
        reply = join_surrogates("".join(texts))
        print_reply_answer(reply)
        return reply

    def _run_search(self, messages: list[Message]) -> tuple[str, str]:
        """The reply and the id of the run."""
        body: dict[str, Any] = {
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            "pair": self._pair,
            **(self._search or {}),
            **self._options,
        }
        if self._seed is not None:
            body["seed"] = self._seed
        if self._chats is None:
            body["id"] = f"run-{secrets.token_hex(6)}"
            self._unkept_runs.append(body["id"])
        result = follow_run(self._client, body, show=True)
        is_first, self._last = self._last is None, result
        reply = str(result.get("text", "")).strip()
        print_reply(reply)
        print_figures(result)
        if is_first and sys.stdin.isatty():
            output.note("/tree shows the tree")
        if result.get("answer") is not None:
            warn_about(result)
            print_reply_answer(reply, result["answer"])
        elif result.get("strategy") in ("self_consistency", "deepconf"):
            output.note("No path names its answer, so there was no vote.")
        return reply, str(result.get("id"))

    def _save(self, turn: Turn) -> None:
        """Keep a finished turn. If it can't be written, say so once and go on."""
        if self._chats is None:
            return
        try:
            if self._saved is None:
                self._saved = self._chats.start(self._opening)
            self._saved.add(turn)
            self._is_unsaved = False
        except StoreError as error:
            if not self._is_unsaved:
                output.warn(f"{error}. The chat goes on; it is kept as soon as that succeeds.")
            self._is_unsaved = True

    def _name_search(self) -> str:
        return "-".join(str(value) for value in (self._search or {}).values())


@contextlib.contextmanager
def _print_errors() -> Iterator[None]:
    """Print the error or interrupt that ends the block, and go on."""
    try:
        yield
    except FlashEdgeError as error:
        output.print_error(error)
    except KeyboardInterrupt:
        output.note("\nstopped")


def _parse_search(text: str) -> dict[str, Any]:
    """The fields of a request for a search such as `beam-16`. Raises NotFound, RequestError."""
    strategy, n = parse_strategy_flags(text, None)
    return {"strategy": strategy} | ({"n": n} if n is not None else {})


@contextlib.contextmanager
def show_turn(number: int, prompt: str, message: str, *, is_typed: bool) -> Iterator[None]:
    """Separate what the block prints from other turns.

    number: counts the turns of this session from 1. is_typed: whether the terminal shows prompt and
    message already, because the user typed there.
    """
    is_terminal = sys.stdout.isatty()
    if is_terminal and not is_typed:
        output.say(f"{prompt}{message}")
    elif not is_terminal and number > 1:
        output.print_data(f"\n[{number}] {' '.join(message.split())}")
    try:
        yield
    finally:
        if is_terminal:
            from rich.rule import Rule

            output.stdout().print(Rule(style="dim"))


def print_reply(text: str) -> None:
    """Print a reply that is whole."""
    if not sys.stdout.isatty():
        output.print_data(text)
        return
    from flashedge.cli.chat.markdown import render_markdown

    output.stdout().print("", render_markdown(text), "", sep="\n")


def print_reply_answer(reply: str, answer: str | None = None) -> None:
    """Print a reply's answer below it, on a terminal only. None looks for it in the reply."""
    from flashedge.answers.extraction import extract_answer

    answer = extract_answer(reply) if answer is None else answer
    if sys.stdout.isatty() and answer is not None and answer != reply.strip():
        output.print_answer(answer)


@contextlib.contextmanager
def stream_reply() -> Iterator[Callable[[str], None]]:
    """Print a reply while it is generated. Yields a function to call with each piece of it.

    A terminal shows the end of the reply as it grows, and all of it when it is over or stopped.
    """
    joiner = PieceJoiner()
    if not sys.stdout.isatty():
        yield lambda piece: output.print_data(joiner.join(piece), end="")
        output.print_data(joiner.end())
        return
    reply = _GrowingReply()
    try:
        yield lambda piece: reply.add(joiner.join(piece))
        reply.add(joiner.end())
    finally:
        reply.print_whole()


class _GrowingReply:
    """A reply that grows on a terminal. Nothing is drawn before its first words, since the model's
    thinking may be printed until then."""

    def __init__(self) -> None:
        self._console = output.stdout()
        self._text = ""
        self._next_at = 0.0
        self._live: Live | None = None

    def add(self, piece: str) -> None:
        from rich.live import Live

        self._text += piece
        if not self._text.strip():
            return
        if self._live is None:
            self._console.print()
            self._live = Live(
                self,
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        began = time.monotonic()
        if began >= self._next_at:
            self._live.refresh()
            now = time.monotonic()
            self._next_at = now + max(LEAST_PAUSE_S, (now - began) / DRAWING_SHARE)

    def print_whole(self) -> None:
        from flashedge.cli.chat.markdown import render_markdown

        if self._live is not None:
            self._live.stop()
            self._console.print(render_markdown(self._text))

    def __rich_console__(self, console: Any, options: ConsoleOptions) -> RenderResult:
        """Yield as many of the last lines as the terminal shows."""
        from rich.segment import Segment

        from flashedge.cli.chat.markdown import render_markdown

        options = options.update(height=None)
        lines = console.render_lines(render_markdown(self._text), options, pad=False)
        for line in lines[-max(console.height - 2, 1) :]:
            yield from (*line, Segment.line())


CONTINUATION = "… "
FENCE = '"""'
MAX_HISTORY = 1000
"""Typed lines that later chats can recall. Chosen by hand: a tenth of it may not last a day."""


def read_message(prompt: str) -> str:
    """One message. A trailing backslash continues it, and a pair of `\"\"\"` encloses many lines.

    Raises EOFError at the end of input.
    """
    lines = [_read_line(prompt).strip()]
    is_block = lines[0].startswith(FENCE)
    lines[0] = lines[0].removeprefix(FENCE)
    with contextlib.suppress(EOFError):
        while is_block and not lines[-1].rstrip().endswith(FENCE):
            lines.append(_read_line(CONTINUATION))
        while not is_block and lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\").rstrip()
            lines.append(_read_line(CONTINUATION).rstrip())
    if is_block:
        lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip()


def _read_line(prompt: str) -> str:
    if not sys.stdin.isatty():
        return input()
    if not sys.stdout.isatty():  # `input` would write the prompt among the replies
        output.stderr().print(prompt, end="")
        return input()
    return input(prompt)


@contextlib.contextmanager
def edit_lines(config: Config, *, is_kept: bool) -> Iterator[None]:
    """Let a terminal edit lines, and recall those of earlier conversations. is_kept: whether later
    conversations may recall the lines that are typed now."""
    if not sys.stdin.isatty():
        yield
        return
    import readline

    readline.parse_and_bind("set enable-bracketed-paste on")
    file = config.state_dir / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        if is_kept:
            with contextlib.suppress(OSError):
                readline.write_history_file(file)

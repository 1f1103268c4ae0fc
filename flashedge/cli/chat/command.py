"""`chat`: a conversation in the terminal, plain or with a search for each answer."""

import time
from typing import Annotated, Any

from typer import Argument, Option

from flashedge.cli import output
from flashedge.cli.chat.conversation import Conversation, edit_lines
from flashedge.cli.chat.saved import Opening, SavedChat, SavedChats, read_chat
from flashedge.cli.connection import connect_ready, load_served
from flashedge.cli.solve.strategy_flags import check_finite, complete_strategy, parse_strategy_flags
from flashedge.client.words import format_duration
from flashedge.config import load_config
from flashedge.errors import ConfigError, RequestError, StoreError
from flashedge.models.registry import find_pair

EPILOG = """\
[bold]Examples[/]
  flashedge chat --search beam-16
  flashedge chat --continue
  flashedge chat --system "Answer briefly." < questions.txt
"""


def chat(
    conversation: Annotated[
        str | None,
        Argument(metavar="ID", help="With --continue: the id of a conversation, or its start."),
    ] = None,
    pair: Annotated[
        str | None, Option(metavar="PAIR", help="Pair to talk to.", show_default="the daemon's")
    ] = None,
    search: Annotated[
        str | None,
        Option(
            metavar="NAME[-N]",
            help="Answer by search, e.g. beam-16; see `flashedge solve --help`.",
            autocompletion=complete_strategy,
        ),
    ] = None,
    seed: Annotated[
        int | None, Option(metavar="N", min=0, help="The same seed gives the same answers.")
    ] = None,
    system: Annotated[str | None, Option(metavar="TEXT", help="The system message.")] = None,
    temperature: Annotated[
        float | None, Option(metavar="X", help="Sampling temperature; 0 is greedy.")
    ] = None,
    thinking: Annotated[
        bool | None,
        Option(
            "--thinking/--no-thinking",
            help="Let a model that can think do so before its answers, or not.",
            show_default="the pair's",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, Option(metavar="N", min=1, help="Most tokens of an answer.")
    ] = None,
    resume: Annotated[
        bool, Option("--continue", "-c", help="Go on with the last conversation, or with ID.")
    ] = False,
    no_save: Annotated[bool, Option("--no-save", help="Keep nothing of this chat.")] = False,
    listing: Annotated[bool, Option("--list", help="List the kept conversations.")] = False,
) -> None:
    """Talk to the generator, or let a search with the verifier answer.

    Type /help in the chat for its commands. By default the last 200 conversations are kept.
    """
    check_finite("temperature", temperature)
    if search not in ("off", "none"):
        parse_strategy_flags(search, None)  # a wrong name is refused before a daemon starts
    if conversation is not None and not resume:
        raise RequestError(
            f"{conversation!r} is the id of a conversation only after --continue",
            hint="start the chat, and type the message there: flashedge chat",
        )
    config = load_served(pair)
    chats = SavedChats(config)
    if listing:
        list_chats(chats)
        return
    opening = Opening(pair=config.pair, system=system)
    is_kept = config.keep_chats > 0 and not no_save
    resumed: SavedChat | None = None
    if resume:
        path = chats.find(conversation)
        resumed = SavedChat.resume(path) if is_kept else SavedChat(path, *read_chat(path)[:2])
        opening = resumed.opening
        if system not in (None, opening.system):
            raise RequestError(
                "a conversation keeps its system message, and --system is another one",
                hint="leave it out, or begin a new conversation without --continue",
            )
        config = load_config({"pair": pair or opening.pair})
    chosen = find_pair(config.pair, config)
    options: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
    if thinking is not None:
        options["chat_template_kwargs"] = {"enable_thinking": thinking}
    with connect_ready(config) as client:
        talk = Conversation(
            client,
            config.pair,
            opening=opening,
            chats=chats if is_kept else None,
            resumed=resumed,
            is_single_turn=chosen.single_turn,
            seed=seed,
            options=options,
        )
        if search is not None:
            talk.set_search(search)
        with edit_lines(config, is_kept=is_kept):
            talk.loop()


def list_chats(chats: SavedChats) -> None:
    """Print the conversations, the one that was used last first."""
    rows: list[tuple[object, ...]] = []
    for path in chats.list():
        try:
            opening, turns, _ = read_chat(path)
        except (ConfigError, StoreError) as error:
            rows.append((path.stem, None, None, None, str(error)))
            continue
        age = format_duration(time.time() - turns[-1].at) if turns else None
        first = turns[0].message if turns else None
        rows.append((path.stem, age, len(turns), opening.pair, first))
    columns = ("id", "age", "turns", "pair", "first message")
    output.print_lines(columns, rows, "no conversations yet")
    if rows:
        output.note(f"Go on with one: flashedge chat --continue ID. They are in {chats.folder}")

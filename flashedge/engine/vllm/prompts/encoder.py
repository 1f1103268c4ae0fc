"""Encodes prompts so that only what we and the chat template write can be a control token.

Control tokens are a tokenizer's special tokens, and those of its other added tokens that its chat
template writes, such as `<tool_call>`. Other added tokens are ordinary words. If a template's own
tokens can't be told from the texts that it is given, texts with a control token are refused.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer

from flashedge.engine.vllm.prompts.spelling import PrivateSpelling
from flashedge.engine.vllm.prompts.templates import ROLES, find_written, join_roles, rewrite
from flashedge.errors import CheckpointError, RequestError
from flashedge.types import TokenIds

MOST_TEMPLATES = 16
"""Most rewritten templates to keep. A tokenizer has one or two, and a system prompt adds one."""
log = logging.getLogger(__name__)


def load_tokenizer(path: Path, *, needs_template: bool = True) -> Any:
    """Load a checkpoint's tokenizer. Raises CheckpointError, also if it lacks a needed template."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: the tokenizer can't be loaded: {error}") from error
    if needs_template and tokenizer.chat_template is None:
        raise CheckpointError(
            f"{path}: the tokenizer has no chat template",
            hint="pull the model again; its template may stand in chat_template.jinja",
        )
    return tokenizer


class PromptEncoder:
    def __init__(
        self, tokenizer: Any, *, own: Iterable[str] = (), words: Iterable[str] = ()
    ) -> None:
        """tokenizer: of transformers. own: further added tokens that only we write. words: tokens
        that anyone may write. Raises CheckpointError for a broken chat template."""
        self.hf = tokenizer
        free = frozenset(words)
        added = [t for t in tokenizer.added_tokens_decoder.values() if t.content not in free]
        named = [token for token in tokenizer.all_special_tokens if token not in free]
        special = dict.fromkeys([*named, *(t.content for t in added if t.special)])
        plain = [t.content for t in added if t.content not in special and t.content.strip()]
        templates = tokenizer.chat_template or {}
        sources = [templates] if isinstance(templates, str) else templates.values()
        try:
            written = {t for source in sources for t in find_written(source, plain)}
        except jinja2.TemplateError as error:
            raise CheckpointError(
                f"{tokenizer.name_or_path}: the chat template can't be read: {error}"
            ) from error
        ours = [token for token in own if token in plain]
        self.spelling = PrivateSpelling([*special, *(t for t in plain if t in written), *ours])
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._private = None if backend is None else self.spelling.respell(backend)
        names = tokenizer.special_tokens_map.items()
        self.variables = {n: self.spelling.spell(t) for n, t in names if isinstance(t, str)}
        """The template's variables with private spellings, such as `bos_token`."""
        self.guard = functools.lru_cache(MOST_TEMPLATES)(self._rewrite)
        """Returns a template with private spellings, or None if its prompts would change."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenIds:
        """Encode a text in which only privately spelled control tokens count as such.

        add_special_tokens: whether the tokenizer puts its BOS and EOS around the text."""
        if self._private is not None:
            # The tokenizer's `encode` would hold the GIL, and stop the daemon during a long text.
            [found] = self._private.encode_batch([text], add_special_tokens=add_special_tokens)
            return tuple(found.ids)
        ids: list[int] = []
        for piece, is_token in self.spelling.split(text):
            if is_token:
                ids.append(self.hf.convert_tokens_to_ids(piece))
            else:
                ids += self.hf.encode(piece, add_special_tokens=False, split_special_tokens=True)
        return tuple(self.hf.build_inputs_with_special_tokens(ids) if add_special_tokens else ids)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> TokenIds:
        """Encode a conversation by the checkpoint's template. Raises as `render_chat`."""
        return self.encode(self.render_chat(messages, **variables))

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, refuses: bool = True, **variables: Any
    ) -> str:
        """Render a conversation by the checkpoint's template, with its tokens spelled privately.

        Raises RequestError if the template refuses the conversation. If its tokens can't be told
        from the texts, a control token in a text or an unknown role raises RequestError too.
        refuses: False breaks such tokens in the messages with a space instead.
        """
        source = self.hf.get_chat_template(None, tools=variables.get("tools"))
        guarded = self.guard(source)
        if guarded is not None:
            variables = {**self.variables, **variables}
        elif refuses:
            refuse_tokens(self.spelling, {"messages": messages, **variables})
        else:
            messages = _change_texts(messages, self.spelling.break_tokens)
        try:
            text = self.hf.apply_chat_template(
                messages, tokenize=False, chat_template=guarded or source, **variables
            )
        except jinja2.TemplateError as error:
            raise RequestError(
                f"the model's chat template refuses the conversation: {error}", param="messages"
            ) from error
        return self.spell_rendered(text, is_guarded=guarded is not None)

    def spell_rendered(self, text: str, *, is_guarded: bool) -> str:
        """Spell the tokens of a rendered text privately. is_guarded: whether `guard` was used."""
        return join_roles(text, self.spelling) if is_guarded else self.spelling.spell(text)

    def _rewrite(self, source: str) -> str | None:
        try:
            rewritten = rewrite(source, self.spelling)
        except jinja2.TemplateError:
            return None
        found = {self._agrees(source, rewritten, probe, tools) for probe, tools in _PROBES}
        if True in found and False not in found:
            return rewritten
        log.warning(
            "a chat template of %s mixes its tokens with the texts it is given; conversations"
            " that hold a control token are refused",
            self.hf.name_or_path,
        )
        return None

    def _agrees(self, source: str, rewritten: str, probe: Any, tools: Any) -> bool | None:
        """Whether both templates give the same ids for `probe`. None if `source` refuses it."""
        options = {"tools": tools, "tokenize": False, "add_generation_prompt": True}
        try:
            text = self.hf.apply_chat_template(probe, chat_template=source, **options)
        except Exception:  # a template may raise anything for what it does not accept
            return None
        try:
            ours = self.hf.apply_chat_template(
                probe, chat_template=rewritten, **options, **self.variables
            )
        except Exception:  # a template may raise anything that its expressions raise
            return False
        expected = tuple(self.hf.encode(text, add_special_tokens=False))
        return self.encode(join_roles(ours, self.spelling)) == expected


def _say(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


_CALL = {
    "id": "a12345678",
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 1, "b": "two"}},
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
        },
    },
}
_ASK, _ANSWER = _say("user", " How many?\n"), _say("assistant", "First, 3.\n\nThen 4.")
_PROBES: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    ([_ASK], None),
    ([_say("system", "Be brief."), _ASK], None),
    ([_ASK, _ANSWER, _ASK], None),
    ([_say("system", ""), _ASK, _ANSWER], None),
    ([_say("developer", "Be brief."), _ASK], None),
    ([_ASK, _say("assistant", "Four.", reasoning_content="Hm.", reasoning="Hm.")], None),
    ([_ASK], [_TOOL]),
    ([_ASK, _say("assistant", "", tool_calls=[_CALL]), _say("tool", "7", name="add")], [_TOOL]),
)
"""Ordinary conversations, with their tools, by which a rewritten template is checked."""


def _change_texts(node: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with all of its texts changed, except for the names of fields."""
    if isinstance(node, str):
        return change(node)
    if isinstance(node, Mapping):
        return {name: _change_texts(part, change) for name, part in node.items()}
    if isinstance(node, list | tuple):
        return [_change_texts(part, change) for part in node]
    return node


def refuse_tokens(spelling: PrivateSpelling, request: Mapping[str, Any]) -> None:
    """Raise RequestError if a text of the request holds a control token, or for an unknown role.

    A template may join the texts of a message's parts, so they are checked joined as well.
    """
    for where, text in list_texts(request):
        if (token := spelling.find(text)) is not None:
            raise RequestError(
                f"{where} holds {token!r}, which this model's chat template can't tell from"
                " its own token",
                hint="write it in another way, such as with a space inside",
                param=where.partition("[")[0],
            )
    for at, message in enumerate(request.get("messages") or ()):
        role = message.get("role") if isinstance(message, Mapping) else None
        if isinstance(role, str) and role not in ROLES:
            raise RequestError(
                f"messages[{at}] has the unknown role {role!r}",
                hint=f"use one of {', '.join(ROLES)}",
                param="messages",
            )


def list_texts(node: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield (place, text) for each text and name in a JSON value, and each list's joined text."""
    if hasattr(node, "model_dump"):
        node = node.model_dump()
    if isinstance(node, str):
        yield where, node
    elif isinstance(node, Mapping):
        for name, part in node.items():
            place = f"{where}.{name}" if where else str(name)
            yield place, str(name)
            yield from list_texts(part, place)
    elif isinstance(node, list | tuple):
        for at, part in enumerate(node):
            yield from list_texts(part, f"{where}[{at}]")
        if len(node) > 1 and where != "messages":
            texts = [p.get("text") for p in node if isinstance(p, Mapping)]
            yield where, "".join(t for t in texts if isinstance(t, str))

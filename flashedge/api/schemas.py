"""Schemas of request bodies. Types are strict; unknown fields and NaN are refused; null is the same
as leaving the field out.

`request.validation` checks the ranges, so that the API and the CLI give the same messages.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from flashedge.runtime.request.values import CHOICES, EXCLUSIVE_MINIMA, INTEGERS, NUMBERS, ROLES
from flashedge.types import Message


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def describe_ranges(schema: dict[str, Any], *one_of: str) -> None:
    """Add to a body's schema what values its fields may have (`request.values`).

    one_of: names of fields, exactly one of which is given.
    """
    if one_of:
        schema["oneOf"] = [{"required": [name]} for name in one_of]
    for name, field in schema["properties"].items():
        values = next((kind for kind in field.get("anyOf", ()) if kind["type"] != "null"), field)
        if name in CHOICES:
            values["enum"] = list(CHOICES[name])
        elif name in INTEGERS or name in NUMBERS:
            least, most = INTEGERS.get(name) or NUMBERS[name]
            values["exclusiveMinimum" if name in EXCLUSIVE_MINIMA else "minimum"] = least
            values["maximum"] = most


class SearchOptions(Body):
    """How to search. `request.validation.Request` says what each field means."""

    model_config = ConfigDict(json_schema_extra=lambda schema: describe_ranges(schema))

    strategy: str | None = None
    n: int | None = None
    branching: int | None = None
    aggregate: str | None = None
    selection: str | None = None
    max_step_tokens: int | None = None
    max_steps: int | None = None
    step_rule: str | None = None
    step_entropy: float | None = None
    min_step_tokens: int | None = None
    judge: str | None = None
    token_budget: int | None = None
    deadline_s: float | None = None
    baseline: bool | None = None
    deterministic: bool | None = None
    early_exit: bool | dict[str, Any] | None = None
    """True for the strategy's own rule, False for none, or the fields of `ExitOptions`."""
    options: dict[str, Any] | None = None
    answers: str | None = None

    def collect_options(self) -> dict[str, Any]:
        return self.model_dump(include=set(SearchOptions.model_fields), exclude_none=True)


class ChatMessage(Body):
    """One message. The role developer means system.

    Clients send the assistant's messages back with the fields from `name` on. These fields must be
    empty, except the reasoning, which is ignored.
    """

    role: str = Field(json_schema_extra={"enum": [*ROLES, "developer"]})
    content: Any = Field(json_schema_extra={"type": ["string", "array"]})
    name: None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)
    tool_calls: list[Any] | None = Field(default=None, max_length=0)
    reasoning: str | None = None
    reasoning_content: str | None = None

    @field_validator("role")
    @classmethod
    def _unify_role(cls, role: str) -> str:
        return "system" if role == "developer" else role

    @field_validator("content")
    @classmethod
    def _join_parts(cls, content: Any) -> str:
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise PydanticCustomError("content", "must be a string or a list of text parts")
        texts = []
        for i, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            text = part.get("text") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(text, str) or len(part) != 2:
                raise PydanticCustomError(
                    "content", f"part {i} is not a text part ({{'type': 'text', 'text': '...'}})"
                )
            texts.append(text)
        return "\n".join(texts)

    @property
    def message(self) -> Message:
        return Message(role=self.role, content=self.content)


class SolveBody(SearchOptions):
    """The body of POST /v1/solve and /v1/runs, with either `problem` or `messages`."""

    model_config = ConfigDict(
        json_schema_extra=lambda schema: describe_ranges(schema, "problem", "messages")
    )

    id: str | None = None
    """The client's name for the run. A second request with this id returns the same run."""
    continues: str | None = None
    """A finished run that this one continues with a larger token_budget."""
    problem: str | None = Field(default=None, json_schema_extra={"minLength": 1})
    messages: list[ChatMessage] | None = Field(default=None, json_schema_extra={"minItems": 1})
    pair: str | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    """How long the pair stays loaded after the run. See `bodies.parse_keep_alive`."""
    priority: int | None = None
    """Smaller is more urgent. Above 0 the run is batch work, which waits for everything else."""
    stream: bool | None = None
    detach: bool | None = None
    """Whether the run goes on when the client disconnects."""


class ScoreBody(Body):
    """The body of POST /v1/score that asks for the scores of solutions."""

    model_config = ConfigDict(
        json_schema_extra=lambda schema: describe_ranges(schema, "solution", "steps")
    )

    model: str | None = None
    """The pair whose verifier scores."""
    problem: str = Field(json_schema_extra={"minLength": 1})
    solution: Any = Field(default=None, json_schema_extra={"type": ["string", "array"]})
    """The text of one solution, or a list of texts."""
    steps: list[str] | None = None
    """The steps of one solution, in place of its text."""
    aggregate: str | None = None
    deterministic: bool | None = None
    keep_alive: float | str | None = None
    priority: int | None = None

    @field_validator("solution")
    @classmethod
    def _check_texts(cls, solution: Any) -> Any:
        texts = solution if isinstance(solution, list) else [solution]
        if solution is not None and not all(isinstance(text, str) for text in texts):
            raise PydanticCustomError("solution", "must be a text or a list of texts")
        return solution


class ProtocolBody(BaseModel):
    """The fields that FlashEdge adds to the protocols' bodies, for /openapi.json."""

    model_config = ConfigDict(extra="allow")

    model: str
    search: SearchOptions | None = None
    keep_alive: float | str | None = None

"""Chains with synthetic faults: every kind that a weak generator makes, and some others.

Most faults are the *right* step for a changed specification or state (another operand, another day,
another carried value); others change the text of a step. The checker alone decides whether and
where a step is wrong, so a fault that happens to be right is labelled right.
"""

import random
from dataclasses import replace

from scripts.train_pair.families.base import Move, Spec, State
from scripts.train_pair.families.expression import parse_term
from scripts.train_pair.families.story import CONFUSED, GAINS, LOSSES
from scripts.train_pair.problems import (
    create_state,
    is_complete,
    read_step,
    render_answer,
    render_step,
)

KINDS = (
    "slip",
    "slip",
    "slip",
    "carried",
    "lookup",
    "lookup",
    "operator",
    "word",
    "skip",
    "skip",
    "repeat",
)
LATE_KINDS = ("early", "digit", "digit")
STORIES = ("story", "diary")
SLIPS = (1, -1, 10, -10, 1, -1, 10, -10, 2, -2, 20, -20, 3, 5, -5, 9, -9, 11, 30)


def _draw_near(rng: random.Random, value: int) -> int:
    """Draw a number near `value` or any two-digit number."""
    if rng.random() < 0.4:
        return rng.randint(10, 99)
    return max(0, value + rng.choice(SLIPS))


def _draw_other_number(rng: random.Random, spec: Spec, value: str) -> str:
    """Draw a number from elsewhere in the problem, or one near `value`."""
    pool = [term for move in spec.moves for term in move.terms if term.isdigit()]
    if pool and rng.random() < 0.7:
        return rng.choice(pool)
    return str(_draw_near(rng, int(value)))


def _change_move(rng: random.Random, spec: Spec, state: State, kind: str) -> Spec:
    """Misread the current move."""
    moves = list(spec.moves)
    if not 0 <= state.done < len(moves):
        return spec
    move: Move = moves[state.done]
    terms = list(move.terms)
    if kind == "lookup":
        index = rng.randrange(len(terms))
        if terms[index].isdigit():
            terms[index] = _draw_other_number(rng, spec, terms[index])
        elif state.known:
            terms[index] = rng.choice(list(state.known))
        if len(terms) > 1 and spec.family in STORIES and rng.random() < 0.4:
            terms.pop(rng.randrange(len(terms)))
        move = replace(move, terms=tuple(terms))
    elif kind == "operator" and move.op:
        move = replace(
            move,
            op=rng.choice([op for op in "+-*" if op != move.op][: 1 if move.op in "+-" else 2]),
        )
    elif kind == "word" and spec.family in STORIES:
        move = replace(move, word=rng.choice((*GAINS, *LOSSES, *CONFUSED, "doubles", "triples")))
    elif kind == "word":
        move = replace(move, word=rng.choice(moves).word)
    moves[state.done] = move
    return replace(spec, moves=tuple(moves))


def _change_left(rng: random.Random, state: State, kind: str) -> State:
    """Copy the remaining terms with a fault (expression family)."""
    left = list(state.left)
    index = rng.randrange(1, len(left)) if rng.random() < 0.6 else 1
    if kind == "lookup":
        number = parse_term(left[index])[1]
        known = [parse_term(term)[1] for term in left[1:]]
        other = rng.choice(known) if rng.random() < 0.4 else _draw_near(rng, number)
        left[index] = left[index].replace(str(number), str(other))
    elif kind == "operator":
        left[index] = ("-" if left[index][0] == "+" else "+") + left[index][1:]
    elif kind == "skip" and len(left) > 2:
        left.pop(index)
    elif kind == "repeat":
        left.insert(index, left[index])
    elif kind == "word" and len(left) > 2 and index < len(left) - 1:
        left[index], left[index + 1] = left[index + 1], left[index]
    return replace(state, left=tuple(left))


def _change_state(rng: random.Random, spec: Spec, state: State, kind: str) -> State:
    """Move to another day, or change the carried value."""
    if kind == "skip":
        return replace(state, done=state.done + rng.choice((1, 1, 1, 2)))
    if kind == "repeat":
        return replace(state, done=max(0, state.done - rng.choice((1, 1, 2))))
    known = dict(state.known)
    if known:
        name = rng.choice(list(known)[-2:])
        known[name] = (
            rng.choice(list(known.values())) if rng.random() < 0.4 else _draw_near(rng, known[name])
        )
    value = None if state.value is None else _draw_near(rng, state.value)
    left = state.left
    if left and left[0].isdigit():
        left = (str(_draw_near(rng, int(left[0]))), *left[1:])
    return replace(state, value=value, known=known, left=left)


def _change_digit(rng: random.Random, text: str) -> str:
    """Replace one digit of the text."""
    places = [index for index, char in enumerate(text) if char.isdigit()]
    if not places:
        return text
    place = (
        places[-rng.randint(1, min(4, len(places)))] if rng.random() < 0.5 else rng.choice(places)
    )
    return text[:place] + rng.choice("0123456789") + text[place + 1 :]


def make_faulty_step(rng: random.Random, spec: Spec, state: State) -> str | None:
    """Make a step that is most likely wrong."""
    worked = rng.random() < 0.35
    if is_complete(spec, state):
        kind = rng.choice(("answer", "digit", "repeat"))
        if kind == "answer":
            return render_answer(spec, _change_state(rng, spec, state, "carried"))
        if kind == "repeat" and spec.family != "expression":
            return render_step(spec, _change_state(rng, spec, state, "repeat"), worked)
        return _change_digit(rng, render_answer(spec, state) or "")
    kind = rng.choice(KINDS + LATE_KINDS)
    if kind == "slip":
        return render_step(spec, state, worked, rng.choice(SLIPS))
    if kind == "early":
        return render_answer(spec, state)
    if kind == "digit":
        return _change_digit(rng, render_step(spec, state, worked) or "")
    if kind == "carried":
        return render_step(spec, _change_state(rng, spec, state, kind), worked)
    if spec.family == "expression":
        return (
            render_step(spec, _change_left(rng, state, kind), worked)
            if len(state.left) > 1
            else None
        )
    if kind in ("skip", "repeat"):
        return render_step(spec, _change_state(rng, spec, state, kind), worked)
    return render_step(_change_move(rng, spec, state, kind), state, worked)


def make_chain(
    rng: random.Random, spec: Spec, fault_rate: float, worked_share: float = 0.3
) -> list[str]:
    """Make a chain whose steps are faulty with probability `fault_rate`.

    Each step builds on the stated values, right or wrong.
    """
    state, steps = create_state(spec), list[str]()
    limit = 2 * len(spec.moves) + 4 + len(spec.moves[0].terms)
    while len(steps) < limit:
        text = make_faulty_step(rng, spec, state) if rng.random() < fault_rate else None
        text = text or render_step(spec, state, rng.random() < worked_share)
        if text is None:
            break
        steps.append(text)
        if "\\boxed" in text:
            break
        state = read_step(spec, state, text)
    return steps

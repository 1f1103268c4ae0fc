"""Stories of one owner in everyday English.

Maria had 15 apples. She bought 9 more, and her brother ate 4. How many apples has she now?
"""

import random
from dataclasses import dataclass

from scripts.train_pair.families.base import Move
from scripts.train_pair.families.plain import (
    CHANGES,
    LAST,
    Draft,
    draw_gain,
    draw_loss,
    draw_value,
    write_change,
    write_equation,
)
from scripts.train_pair.families.words import (
    CIRCUMSTANCES,
    GAINS,
    GIFTS,
    HE,
    LOSSES,
    MISHAPS,
    PLACES,
    RELATIVES,
    SHE,
    SMALL,
    THEFTS,
    Person,
    Verb,
    draw_person,
    draw_thing,
)

TIMES = (
    *("Then", "Later", "After that", "Next", "The next day", "In the evening", "In the afternoon"),
    *("On Monday", "On Tuesday", "On Sunday", "Yesterday", "Today", "A week later", "Afterwards"),
    *(
        "At school",
        "At home",
        "At lunch",
        "On the way home",
        "First",
        "Now",
        "Finally",
        "In the end",
    ),
    *(
        "After lunch",
        "One day",
        "In the morning",
        "At the market",
        "For her birthday",
        "At Christmas",
    ),
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that changes how many things the owner has."""

    clause: str
    """What happens, with its subject: `she buys 9 more apples`."""

    short: str
    """The same without the subject, or the whole clause if its subject is not the owner."""

    gerund: str
    """`buying 9 more apples`, or nothing if its subject is not the owner."""

    verb: str
    """What stands before the number in `short`, or nothing if the number comes first."""

    move: Move
    value: int
    """How many there are afterwards."""


def spell(rng: random.Random, number: int) -> str:
    """Write a number in a problem, a small one sometimes in letters."""
    if number < len(SMALL) and number > 0 and rng.random() < 0.12:
        return SMALL[number]
    return "a dozen" if number == 12 and rng.random() < 0.05 else str(number)


def draw_other(rng: random.Random, owner: Person) -> str:
    """Draw somebody else, as the words inside a sentence."""
    if rng.random() < 0.5:
        return rng.choice(RELATIVES) if not owner.speaks else rng.choice(("a friend", "my sister"))
    return rng.choice([name for name in (*SHE, *HE) if name != owner.name])


def conjugate(verb: Verb, owner: Person, is_past: bool) -> str:
    """The verb's form for the owner."""
    if is_past:
        form = verb.past
        plural = owner.subject == "they"
        return form.replace("was ", "were ", 1) if plural and form.startswith("was ") else form
    if owner.subject in ("I", "they"):
        if verb.base.startswith("be "):
            return ("am" if owner.speaks else "are") + verb.base[2:]
        return verb.base
    return verb.third


def draw_tail(rng: random.Random, owner: Person, thing: str, number: int, is_gain: bool) -> str:
    """Draw what stands behind a verb's number: `more apples`, `of them`."""
    one = thing[:-1] if number == 1 and thing.endswith("s") else thing
    options = ["", "", "", "", f" {one}", f" {one}"]
    if is_gain:
        options += [" more", " more", f" more {one}", f" more {one}", f" new {one}"]
    else:
        options += [" of them", " of them", f" of {owner.possessive} {thing}", f" of the {thing}"]
    return rng.choice(options)


def draw_event(
    rng: random.Random, owner: Person, thing: str, value: int, is_past: bool, *, own: bool = False
) -> Event:
    """Draw an event. own: only what the owner does."""
    is_gain = rng.random() < (0.5 if value > 3 else 0.9)
    kind = 1.0 if own or owner.subject == "it" else rng.random()
    number = draw_gain(rng, value) if is_gain else draw_loss(rng, value)
    after = value + number if is_gain else value - number
    op = "+" if is_gain else "-"
    shown = spell(rng, number)
    tail = draw_tail(rng, owner, thing, number, is_gain)
    if kind < 0.16:
        other = draw_other(rng, owner)
        verb = rng.choice(GIFTS if is_gain else THEFTS)
        form = verb.past if is_past else verb.third
        if is_gain:
            clause = rng.choice(
                (f"{other} {form} {owner.object} {shown}{tail}",) * 3
                + (f"{other} {form} {shown}{tail} to {owner.object}",) * (verb.base != "buy")
            )
        else:
            clause = f"{other} {form} {shown}{tail} from {owner.object}"
        return Event(clause, clause, "", f"{other} {form}", write_change(op, number), after)
    if kind < 0.24 and not is_gain and number > 1:
        form = rng.choice(MISHAPS)[is_past]
        clause = f"{shown}{rng.choice(('', f' {thing}', ' of them'))} {form}"
        return Event(clause, clause, "", "", write_change(op, number), after)
    if rng.random() < 0.08:
        shown = rng.choice(("another {}", "a pack of {}", "only {}", "exactly {}")).format(shown)
        tail = ""
    verb = rng.choice(GAINS if is_gain else LOSSES)
    other = draw_other(rng, owner)
    form = conjugate(verb, owner, is_past).replace("{other}", other)
    gerund = verb.gerund.replace("{other}", other)
    place = f" {verb.after}".replace("{other}", other) if verb.after else ""
    if not place and rng.random() < 0.12:
        place = f" {rng.choice(CIRCUMSTANCES)}"
    if "{other}" in verb.base:
        place = ""
    short = f"{form} {shown}{tail}{place}"
    return Event(
        f"{owner.subject} {short}",
        short,
        f"{gerund} {shown}{tail}{place}",
        form,
        write_change(op, number),
        after,
    )


def capitalize(text: str) -> str:
    """Start a sentence."""
    return text[:1].upper() + text[1:]


def tell_events(rng: random.Random, owner: Person, opening: str, events: list[Event]) -> str:
    """Join the opening, which has no full stop yet, and the events to sentences."""
    parts, rest = [opening], list(events)
    all_own = all(event.gerund for event in rest)
    form = rng.random()
    if form < 0.2 and all_own:  # Dan has 24 nuts, wins 20 and loses 5.
        words = [event.short for event in rest]
        glue = rng.choice((" and ", ", and ", " and then ", ", then ", " but "))
        return f"{', '.join([opening, *words[:-1]])}{glue}{words[-1]}."
    if form < 0.25 and all_own:  # Dan has 24 nuts. Wins 20. Loses 5.
        return f"{opening}. {' '.join(capitalize(e.short) + '.' for e in rest)}"
    if form < 0.4 and len(rest) > 1:  # Dan has 24 nuts and wins 20. Then he loses 5.
        parts = [f"{opening}{rng.choice((' and ', '; ', ', and '))}{_speak(rng, rest.pop(0))}"]
    while rest:
        event = rest.pop(0)
        sentence = event.clause
        if rest and rng.random() < 0.3:
            glue = rng.choice((" and ", ", then ", " and then ", ", but ", "; "))
            following = rest.pop(0)
            sentence += glue + (following.short if event.gerund else following.clause)
        chance = rng.random()
        if chance < 0.3:
            sentence = f"{rng.choice(TIMES)}{rng.choice((' ', ', '))}{sentence}"
        elif chance < 0.5 and event.gerund:
            sentence = owner.middle + sentence[len(owner.subject) :]
        parts.append(capitalize(sentence))
    return ". ".join(parts) + "."


def _speak(rng: random.Random, event: Event) -> str:
    return event.short if event.gerund and rng.random() < 0.7 else event.clause


def ask(
    rng: random.Random, owner: Person, thing: str, is_gain: bool = False, by_name: bool = False
) -> str:
    """Ask how many things the owner has in the end.

    by_name: name the owner, where anything less could mean somebody else.
    """
    who = owner.middle if by_name else rng.choice((owner.middle, owner.subject, owner.subject))
    many = rng.choice((f"How many {thing}", f"How many {thing}", "How many"))
    is_third = by_name or owner.subject not in ("I", "they")
    does, has = ("does", "has") if is_third else ("do", "have")
    end = rng.choice(
        ("", " now", " now", " now", " in the end", " at the end", " in total", " altogether")
        if is_gain
        else ("", " now", " now", " now", " left", " left", " in the end", " after that", " today")
    )
    options = [
        f"{many} {does} {who} have{end}?",
        f"{many} {does} {who} have{end}?",
        f"{many} {does} {who} have{end}?",
        f"{many} {has} {who}{end}?",
        f"{many} {has} {who} got{end}?",
        f"{many} {does} {who} still have?",
        f"{many} {does} {who} end up with?",
        f"{many} are there{end}?",
        f"{many} now?",
        f"{capitalize(has)} how many?",
        f"What is the number of {thing} now?",
        f"Find how many {thing} {who} {has} now.",
        f"So how many {thing} {does} {who} have now?",
        f"Tell me how many {thing} {who} {has}{end}.",
    ]
    if not is_gain:
        options += [
            *(
                f"{many} are left?",
                f"{many} are left?",
                f"{many} remain?",
                f"{many} are left over?",
            ),
            *(f"{many} does {who} keep?", f"{many} are still there?", f"{many} remain{end}?"),
        ]
    return rng.choice([text for text in options if who in text] if by_name else options)


def draw_story(rng: random.Random) -> Draft:
    """Draw a story of one owner."""
    form = rng.random()
    if form < 0.07:
        return _draw_place(rng)
    if form < 0.11:
        return _draw_backward(rng)
    if form < 0.15:
        return rng.choice((_draw_groups, _draw_kinds))(rng)
    owner, thing = draw_person(rng), draw_thing(rng)
    is_past, start = rng.random() < 0.4, draw_value(rng)
    if form < 0.19:
        return _draw_ratio(rng, owner, thing, start)
    if form < 0.23:
        return _draw_part_first(rng, owner, thing, start)
    count = rng.choice((1, 1, 1, 2, 2, 2, 3, 3, 4))
    asks_first = form < 0.28
    events, value = list[Event](), start
    for _ in range(count):
        own = asks_first or rng.random() < 0.7
        events.append(draw_event(rng, owner, thing, value, is_past, own=own))
        value = events[-1].value
    moves = tuple(event.move for event in events)
    is_gain = all(event.move.op == "+" for event in events)
    shown = f"{spell(rng, start)} {thing}"
    has = _draw_having(rng, owner, is_past)
    if asks_first:
        does = "do" if owner.subject in ("I", "they") else "does"
        told = ", ".join([f"{owner.subject} {has} {shown}", *(e.short for e in events[:-1])])
        told += f" and {events[-1].short}"
        if rng.random() < 0.6:
            return Draft(f"How many {thing} {does} {owner.middle} have if {told}?", moves, start)
        return Draft(f"If {told}, how many {thing} {does} {owner.subject} have?", moves, start)
    opening = f"{owner.name} {has} {shown}"
    if rng.random() < 0.12 and not owner.speaks:
        number, first = spell(rng, start), rng.choice(("At first", "In the morning", "Today"))
        opening = rng.choice(
            (
                f"There {'were' if is_past else 'are'} {shown} in {owner.middle}'s bag",
                f"{first} {owner.middle} {has} {shown}",
                f"{owner.name} counts {owner.possessive} {thing}: {number}",
                f"{owner.name} likes {thing}. {capitalize(owner.subject)} {has} {number}",
                f"{owner.name} {has} a box with {shown}",
            )
        )
    text = tell_events(rng, owner, opening, events)
    if rng.random() < 0.05 and events[-1].gerund and count == 1:
        after = rng.choice(("After", "After"))
        does = "do" if owner.subject in ("I", "they") else "does"
        return Draft(
            f"{opening}. {after} {events[0].gerund}, how many {thing} {does} {owner.subject} have?",
            moves,
            start,
        )
    if rng.random() < 0.12:
        text = _add_remark(rng, owner, thing, text)
    return Draft(f"{text} {ask(rng, owner, thing, is_gain)}", moves, start)


def _draw_having(rng: random.Random, owner: Person, is_past: bool) -> str:
    plain = owner.subject in ("I", "they")
    if is_past:
        return rng.choice(("had", "had", "had", "had", "started with", "owned", "had collected"))
    if plain:
        return rng.choice(("have", "have", "have", "have got", "start with", "own"))
    return rng.choice(("has", "has", "has", "has", "has got", "starts with", "owns", "keeps"))


def _add_remark(rng: random.Random, owner: Person, thing: str, text: str) -> str:
    other = rng.choice([name for name in (*SHE, *HE) if name != owner.name])
    number = rng.randint(2, 99)
    remark = rng.choice(
        (
            f"{other} has {number} {thing}.",
            f"{other} has {number} {draw_thing(rng)}.",
            f"{capitalize(owner.subject)} {'is' if owner.subject not in ('I', 'they') else 'like'} "
            + ("happy." if owner.subject not in ("I", "they") else "them."),
            f"{other} wins {number} {draw_thing(rng)}.",
        )
    )
    return f"{text} {remark}"


def _draw_place(rng: random.Random) -> Draft:
    place, is_past = rng.choice(PLACES), rng.random() < 0.35
    start = value = rng.randint(5, 99)
    are, shown = "were" if is_past else "are", spell(rng, start)
    parts = [
        rng.choice(
            (
                f"There {are} {shown} {place.thing} {place.where}",
                f"{shown} {place.thing} {are} {place.where}",
                f"{start} {place.thing} sit {place.where}",
            )
        )
    ]
    moves = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        is_gain = rng.random() < 0.5 or value < 3
        number = draw_gain(rng, value) if is_gain else draw_loss(rng, value)
        word = rng.choice(place.comes if is_gain else place.goes)
        more = (
            rng.choice((" more", f" more {place.thing}", ""))
            if is_gain
            else rng.choice(("", "", f" {place.thing}", " of them"))
        )
        before = rng.choice(("", "", "Then ", "Later ", "At the next stop "))
        parts.append(capitalize(f"{before}{spell(rng, number)}{more} {word}"))
        op = "+" if is_gain else "-"
        moves.append(write_change(op, number))
        value += number if is_gain else -number
    question = rng.choice(
        (
            f"How many {place.thing} are there now?",
            f"How many {place.thing} are {place.where} now?",
            f"How many {place.thing} are there in the end?",
            "How many are there now?",
            "How many are left?" if moves[-1].op == "-" else "How many now?",
        )
    )
    return Draft(f"{capitalize('. '.join(parts))}. {question}", tuple(moves), start)


def _draw_backward(rng: random.Random) -> Draft:
    """Ask for the beginning or for a change, not for the end."""
    owner, thing = draw_person(rng), draw_thing(rng)
    start = max(3, draw_value(rng))
    loss, gain = draw_loss(rng, start - 1), draw_gain(rng, start)
    does = "do" if owner.subject in ("I", "they") else "does"
    kind = rng.randrange(4)
    if kind == 0:
        verb = rng.choice([verb for verb in LOSSES if "{" not in verb.base and not verb.after])
        text = f"{owner.name} had some {thing}. {capitalize(owner.subject)} {verb.past} {loss} "
        text += f"and {'has' if does == 'does' else 'have'} {start - loss} left. How many {thing} "
        text += f"did {owner.subject} have at first?"
        return Draft(text, (write_equation("At first", str(start - loss), "+", str(loss)),))
    if kind == 1:
        verb = rng.choice([verb for verb in LOSSES if "{" not in verb.base and not verb.after])
        have = "have" if does == "do" else "has"
        text = f"{owner.name} had {start} {thing}. Now {owner.subject} {have} {start - loss}. "
        text += f"How many {rng.choice((thing + ' ', ''))}did {owner.subject} {verb.base}?"
        return Draft(text, (write_equation("Difference", str(start), "-", str(start - loss)),))
    have, need = ("have", "need") if does == "do" else ("has", "needs")
    if kind == 2:
        text = f"{owner.name} {have} {start} {thing} and {need} {start + gain}. "
        text += f"How many more {rng.choice((thing + ' ', ''))}{does} {owner.subject} need?"
        return Draft(text, (write_equation("Difference", str(start + gain), "-", str(start)),))
    text = f"{owner.name} had {start} {thing}. Now {owner.subject} {have} {start + gain}. "
    text += f"How many {thing} did {owner.subject} {rng.choice(('get', 'win', 'buy', 'find'))}?"
    return Draft(text, (write_equation("Difference", str(start + gain), "-", str(start)),))


def _draw_groups(rng: random.Random) -> Draft:
    """Bags with things, prices, equal shares."""
    owner, thing = draw_person(rng), draw_thing(rng)
    groups, size = rng.randint(2, 12), rng.randint(2, 12)
    holder = rng.choice(("bags", "boxes", "packs", "baskets", "rows", "bowls", "jars", "tables"))
    has = "have" if owner.subject in ("I", "they") else "has"
    does = "do" if has == "have" else "does"
    kind = rng.randrange(4)
    if kind == 0:
        each = rng.choice(
            (
                f"{groups} {holder} with {size} {thing} each",
                f"{groups} {holder}. Each has {size} {thing}",
                f"{groups} {holder} of {size} {thing}",
                f"{groups} {holder} with {size} {thing} in each",
            )
        )
        question = rng.choice(
            (f"How many {thing} {does} {owner.subject} have?", f"How many {thing}?")
        )
        text = f"{owner.name} {has} {each}. {question}"
        return Draft(text, (write_equation("Times", str(groups), "*", str(size)),))
    if kind == 1:
        total = groups * size
        verb = rng.choice(("shares", "divides", "splits")) if does == "does" else "share"
        text = f"{owner.name} {verb} {total} {thing} equally among {groups} friends. "
        text += rng.choice(("How many does each get?", f"How many {thing} does each friend get?"))
        return Draft(text, (write_equation("Each", str(total), "/", str(groups)),))
    start = draw_value(rng)
    verb = "buy" if does == "do" else "buys"
    if kind == 2:
        text = f"{owner.name} {has} {start} {thing} and {verb} {groups} {holder} with {size} each. "
        text += ask(rng, owner, thing, True)
        moves = (
            write_equation("Times", str(groups), "*", str(size)),
            write_equation(CHANGES["+"], str(start), "+", "#1"),
        )
        return Draft(text, moves)
    singular = thing[:-1] if thing.endswith("s") else thing
    text = f"One {singular} costs {size} {rng.choice(('euros', 'dollars', 'coins'))}. "
    text += f"How much do {groups} {thing} cost?"
    return Draft(text, (write_equation("Times", str(groups), "*", str(size)),))


def _draw_kinds(rng: random.Random) -> Draft:
    """Two kinds of things: `Lily has 12 red balls and 9 blue balls. How many balls?`"""
    owner, thing = draw_person(rng), draw_thing(rng)
    one, other = rng.sample(("red", "blue", "green", "white", "small", "big", "old", "new"), 2)
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    has = "have" if owner.subject in ("I", "they") else "has"
    noun = rng.choice((f" {thing}", ""))
    text = f"{owner.name} {has} {a} {one}{noun} and {b} {other} {thing}. "
    text += ask(rng, owner, thing, True)
    return Draft(text, (write_equation("Together", str(a), "+", str(b)),))


def _draw_ratio(rng: random.Random, owner: Person, thing: str, start: int) -> Draft:
    """Half of them, or twice as many."""
    has = "have" if owner.subject in ("I", "they") else "has"
    if rng.random() < 0.6:
        start += start % 2
        verb = rng.choice([verb for verb in LOSSES if "{" not in verb.base])
        form = verb.base if has == "have" else verb.third
        text = f"{owner.name} {has} {start} {thing} and {form} half of them. "
        text += ask(rng, owner, thing)
        moves = [write_equation("Half", LAST, "/", "2")]
    else:
        times, number = rng.choice((("doubles", 2), ("triples", 3)))
        form = times[:-1] if has == "have" else times
        text = f"{owner.name} {has} {start} {thing} and {form} them. {ask(rng, owner, thing, True)}"
        moves = [write_equation("Times", LAST, "*", str(number))]
    return Draft(text, tuple(moves), start)


def _draw_part_first(rng: random.Random, owner: Person, thing: str, start: int) -> Draft:
    """Name what happens before what there was: `Clara lost 16 of her 70 pearls`."""
    is_past = rng.random() < 0.6
    if rng.random() < 0.6:
        loss = draw_loss(rng, start)
        verb = rng.choice([verb for verb in LOSSES if "{" not in verb.base])
        form = conjugate(verb, owner, is_past)
        place = f" {verb.after}" if verb.after and "{" not in verb.after else ""
        text = f"{owner.name} {form} {loss} of {owner.possessive} {start} {thing}{place}. "
        text += ask(rng, owner, thing)
        return Draft(text, (write_change("-", loss, str(start)),))
    gain = draw_gain(rng, start)
    verb = rng.choice([verb for verb in GAINS if "{" not in verb.base])
    form = conjugate(verb, owner, is_past)
    had = "had" if is_past else ("have" if owner.subject in ("I", "they") else "has")
    already = rng.choice(
        (
            f"{capitalize(owner.subject)} already {had} {start}",
            f"At home {owner.subject} already {had} {start} {thing}",
            f"Before that {owner.subject} had {start}",
        )
    )
    text = f"{owner.name} {form} {gain} {thing}. {already}. {ask(rng, owner, thing, True)}"
    return Draft(text, (write_change("+", gain, str(start)),))

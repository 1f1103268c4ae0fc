"""The words of problems in everyday English: persons, things, and what happens to things."""

import random
from dataclasses import dataclass

SHE = (
    *("Ada", "Cleo", "Eva", "Ivy", "Kim", "Mia", "Noa", "Zoe", "Anna", "Ann", "Emma", "Lily"),
    *("Sara", "Sarah", "Lisa", "Julia", "Nina", "Maria", "Olivia", "Sophie", "Clara", "Ella"),
    *("Lucy", "Grace", "Rosa", "Amy", "Jane", "Mary", "Alice", "Laura", "Maya", "Priya", "Yuki"),
    *("Fatima", "Elena", "Hannah", "Ruth", "Tina", "Vera", "Wendy", "Paula", "Nora", "Beth"),
)
HE = (
    *("Ben", "Dan", "Finn", "Gus", "Leo", "Tom", "Max", "Paul", "Peter", "John", "Jack", "Sam"),
    *("Tim", "Noah", "Luke", "Mark", "David", "Adam", "Alex", "Omar", "Ali", "Raj", "Ken", "Bob"),
    *("Jim", "Joe", "Karl", "Hugo", "Ivan", "Oscar", "Ravi", "Theo", "Will", "Erik", "Carlos"),
    *("Liam", "Nick", "Otto", "Felix", "George", "Henry", "James", "Mike", "Steve", "Victor"),
)
PERSONS_BY_ROLE = (
    *("A farmer", "A baker", "A teacher", "A pupil", "A boy", "A girl", "My friend", "My brother"),
    *(
        "My sister",
        "A shop",
        "The shop",
        "A library",
        "A school",
        "The library",
        "A man",
        "A woman",
    ),
    *("A gardener", "A fisherman", "A collector", "The team", "My neighbour", "Grandma", "Grandpa"),
)
ITS = ("shop", "library", "school", "team")
THINGS = (
    *("shells", "coins", "stamps", "cards", "books", "apples", "pens", "stones", "beads", "nuts"),
    *("marbles", "sweets", "candies", "cookies", "eggs", "oranges", "pears", "plums", "bananas"),
    *("balls", "balloons", "toys", "dolls", "cars", "stickers", "pencils", "crayons", "flowers"),
    *("roses", "tickets", "tokens", "points", "dollars", "euros", "chairs", "cups", "plates"),
    *("hats", "socks", "shirts", "buttons", "keys", "rocks", "sticks", "leaves", "fish", "hens"),
    *("sheep", "cows", "chickens", "cakes", "rolls", "muffins", "pies", "lemons", "peaches"),
    *("berries", "tomatoes", "carrots", "potatoes", "onions", "melons", "grapes", "letters"),
    *("postcards", "photos", "pictures", "magazines", "comics", "badges", "medals", "bricks"),
    *("blocks", "boxes", "bottles", "jars", "bags", "candles", "lamps", "nails", "screws", "bolts"),
    *("ribbons", "rings", "gems", "pebbles", "acorns", "seeds", "tulips", "kites", "games"),
    *(
        "puzzles",
        "notebooks",
        "erasers",
        "biscuits",
        "chocolates",
        "donuts",
        "sandwiches",
        "pizzas",
    ),
    *("tiles", "planks", "batteries", "bulbs", "phones", "cherries", "strawberries", "chestnuts"),
    *("jars of jam", "bags of rice", "cups of tea", "grams of sugar", "pairs of socks", "sheets"),
    *("kittens", "puppies", "rabbits", "cats", "dates", "pearls", "records", "bottles of water"),
    *("walnuts", "bracelets", "souvenirs", "paintings", "trophies", "chips", "pins", "crates"),
)


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb in the forms that problems use."""

    base: str
    third: str
    past: str
    gerund: str
    after: str = ""
    """What may follow the number: `to Tom`, where `{other}` is a person."""


def _read(table: str) -> tuple[Verb, ...]:
    rows = (line.strip().split(",") for line in table.strip().splitlines())
    return tuple(Verb(*(cell.strip() for cell in row)) for row in rows)


GAINS = _read("""
    find, finds, found, finding
    find, finds, found, finding, in the garden
    buy, buys, bought, buying
    buy, buys, bought, buying, from {other}
    buy, buys, bought, buying, at the market
    win, wins, won, winning
    win, wins, won, winning, in a game
    win, wins, won, winning, from {other}
    get, gets, got, getting
    get, gets, got, getting, from {other}
    receive, receives, received, receiving
    receive, receives, received, receiving, from {other}
    collect, collects, collected, collecting
    gather, gathers, gathered, gathering
    pick, picks, picked, picking
    pick up, picks up, picked up, picking up
    earn, earns, earned, earning
    make, makes, made, making
    bake, bakes, baked, baking
    catch, catches, caught, catching
    borrow, borrows, borrowed, borrowing, from {other}
    borrow, borrows, borrowed, borrowing
    gain, gains, gained, gaining
    save, saves, saved, saving
    add, adds, added, adding
    take, takes, took, taking, from {other}
    order, orders, ordered, ordering
    inherit, inherits, inherited, inheriting
    discover, discovers, discovered, discovering
    grow, grows, grew, growing
    harvest, harvests, harvested, harvesting
    produce, produces, produced, producing
    acquire, acquires, acquired, acquiring
    bring home, brings home, brought home, bringing home
    get back, gets back, got back, getting back
    win back, wins back, won back, winning back
    earn, earns, earned, earning, for helping {other}
    be given, is given, was given, being given
    be given, is given, was given, being given, by {other}
    be sent, is sent, was sent, being sent
    dig up, digs up, dug up, digging up
    build, builds, built, building
    score, scores, scored, scoring
    print, prints, printed, printing
    adopt, adopts, adopted, adopting
    write, writes, wrote, writing
    draw, draws, drew, drawing
    put in, puts in, put in, putting in
    trade for, trades for, traded for, trading for
    rescue, rescues, rescued, rescuing
    cook, cooks, cooked, cooking
""")
LOSSES = _read("""
    lose, loses, lost, losing
    lose, loses, lost, losing, on the way home
    lose, loses, lost, losing, to {other}
    sell, sells, sold, selling
    sell, sells, sold, selling, to {other}
    drop, drops, dropped, dropping
    use, uses, used, using
    use up, uses up, used up, using up
    eat, eats, ate, eating
    eat, eats, ate, eating, for lunch
    spend, spends, spent, spending
    give away, gives away, gave away, giving away
    give, gives, gave, giving, to {other}
    give, gives, gave, giving, to a friend
    give, gives, gave, giving, to her sister
    give, gives, gave, giving, to his brother
    give {other}, gives {other}, gave {other}, giving {other}
    give back, gives back, gave back, giving back
    lend, lends, lent, lending
    lend, lends, lent, lending, to {other}
    lend {other}, lends {other}, lent {other}, lending {other}
    break, breaks, broke, breaking
    throw away, throws away, threw away, throwing away
    donate, donates, donated, donating
    hand out, hands out, handed out, handing out
    hand over, hands over, handed over, handing over, to {other}
    hand {other}, hands {other}, handed {other}, handing {other}
    pay, pays, paid, paying
    drink, drinks, drank, drinking
    burn, burns, burned, burning
    waste, wastes, wasted, wasting
    trade away, trades away, traded away, trading away
    leave behind, leaves behind, left behind, leaving behind
    send, sends, sent, sending, to {other}
    send {other}, sends {other}, sent {other}, sending {other}
    return, returns, returned, returning
    return, returns, returned, returning, to {other}
    forget, forgets, forgot, forgetting, at school
    misplace, misplaces, misplaced, misplacing
    ship, ships, shipped, shipping
    discard, discards, discarded, discarding
    remove, removes, removed, removing
    plant, plants, planted, planting
    toss out, tosses out, tossed out, tossing out
    feed, feeds, fed, feeding, to the birds
    share, shares, shared, sharing, with {other}
    part with, parts with, parted with, parting with
    take out, takes out, took out, taking out
    delete, deletes, deleted, deleting
    cut, cuts, cut, cutting
    trade, trades, traded, trading
    smash, smashes, smashed, smashing
    mail, mails, mailed, mailing, to {other}
    deliver, delivers, delivered, delivering
    serve, serves, served, serving
    put away, puts away, put away, putting away
    let go, lets go, let go, letting go
""")
GIFTS = _read("""
    give, gives, gave, giving
    lend, lends, lent, lending
    send, sends, sent, sending
    bring, brings, brought, bringing
    hand, hands, handed, handing
    buy, buys, bought, buying
    pass, passes, passed, passing
""")
"""What another person does for the owner: `Tom gives him 5`."""

THEFTS = _read("""
    take, takes, took, taking
    steal, steals, stole, stealing
    borrow, borrows, borrowed, borrowing
    win, wins, won, winning
    buy, buys, bought, buying
""")
"""What another person does to the owner: `Tom takes 5 from him`."""

MISHAPS = (
    ("break", "broke"),
    ("are stolen", "were stolen"),
    ("get lost", "got lost"),
    ("are lost", "were lost"),
    ("are sold", "were sold"),
    ("are eaten", "were eaten"),
    ("go missing", "went missing"),
    ("fall down", "fell down"),
    ("are used", "were used"),
    ("are broken", "were broken"),
    ("die", "died"),
    ("melt", "melted"),
    ("fly away", "flew away"),
    ("run away", "ran away"),
    ("disappear", "disappeared"),
    ("roll away", "rolled away"),
    ("go bad", "went bad"),
)
"""What happens to things by themselves, in the present and in the past."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place where things come and go by themselves."""

    thing: str
    where: str
    comes: tuple[str, ...]
    goes: tuple[str, ...]


PLACES = (
    Place("birds", "on a tree", ("land", "come", "join them"), ("fly away", "leave")),
    Place("birds", "in a tree", ("arrive", "fly in"), ("fly off", "fly away")),
    Place("people", "on a bus", ("get on", "board"), ("get off", "leave")),
    Place("passengers", "on a train", ("get on", "board"), ("get off",)),
    Place("children", "in a park", ("come", "arrive", "join them"), ("go home", "leave")),
    Place("pupils", "in a class", ("join", "come"), ("leave", "go home")),
    Place("cars", "in a car park", ("arrive", "drive in", "come"), ("leave", "drive away")),
    Place("fish", "in a pond", ("are added", "swim in"), ("swim away", "are caught")),
    Place("ducks", "on a lake", ("arrive", "land"), ("swim away", "fly away")),
    Place(
        "books", "on a shelf", ("are added", "are put there"), ("are taken away", "are lent out")
    ),
    Place("guests", "at a party", ("arrive", "come"), ("leave", "go home")),
    Place("apples", "in a basket", ("are added", "are put in"), ("are eaten", "are taken out")),
    Place("boats", "in a harbour", ("arrive", "come in"), ("leave", "sail away")),
    Place("sheep", "in a field", ("come", "are brought"), ("run away", "leave")),
)
RELATIVES = (
    *("a friend", "his friend", "her friend", "his mother", "her mother", "his father"),
    *("her father", "his sister", "her sister", "his brother", "her brother", "an uncle"),
    *("his uncle", "her aunt", "a neighbour", "grandma", "his cousin", "her cousin", "a teacher"),
    *(
        "the postman",
        "a museum",
        "her mum",
        "his dad",
        "the school",
        "the neighbours",
        "a stranger",
    ),
    *("his teacher", "her best friend", "the other children", "a customer", "his wife", "her son"),
)
SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    *("nineteen", "twenty"),
)

CIRCUMSTANCES = (
    *("for a cake", "on a trip", "for her birthday", "in the park", "at the fair", "on new shoes"),
    *("for dinner", "during the break", "by mistake", "from the shop", "on the beach", "at work"),
    *("for a friend", "in the morning", "on Friday", "at home", "in the city", "as a present"),
    *("for the party", "last week", "in the kitchen", "in a contest", "at a sale", "on holiday"),
)

_STARTS = ("b", "br", "c", "ch", "d", "dr", "f", "g", "h", "j", "k", "kl", "l", "m", "n", "p", "r")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oo")
_ENDS = ("", "b", "ck", "d", "g", "l", "ll", "m", "n", "nd", "p", "r", "s", "t", "x", "z")


def invent_word(rng: random.Random) -> str:
    """Invent a word, so that a model learns to copy words that it does not know."""
    parts = rng.choice((1, 2, 2, 3))
    return "".join(
        rng.choice(_STARTS) + rng.choice(_VOWELS) + rng.choice(_ENDS) for _ in range(parts)
    )


def draw_thing(rng: random.Random) -> str:
    """Draw the plural of a thing, sometimes an invented one, sometimes with a colour or a kind."""
    chance = rng.random()
    if chance < 0.12:
        return invent_word(rng) + "s"
    thing = rng.choice(THINGS)
    if chance < 0.2:
        return f"{rng.choice(('red', 'blue', 'old', 'new', 'small', 'big', 'toy', 'gold'))} {thing}"
    return thing


@dataclass(frozen=True, slots=True)
class Person:
    """A person, or a shop, with the words that refer to it."""

    name: str
    subject: str
    """he, she, it, they or I."""

    object: str
    possessive: str

    @property
    def speaks(self) -> bool:
        """Whether the problem is told by this person."""
        return self.name == "I"

    @property
    def middle(self) -> str:
        """The name as it stands inside a sentence."""
        head, _, rest = self.name.partition(" ")
        if head in ("A", "The"):
            return f"the {rest}"
        return f"my {rest}" if head == "My" else self.name


def draw_person(rng: random.Random) -> Person:
    """Draw a person."""
    chance = rng.random()
    if chance < 0.07:
        return Person("I", "I", "me", "my")
    if chance < 0.1:
        she, he = rng.choice(("Mrs.", "Aunt", "Ms.")), rng.choice(("Mr.", "Uncle", "Dr."))
        is_she = rng.random() < 0.5
        family = rng.choice((*HE, *SHE, "Clark", "Lee", "Smith", "Brown", "Miller", "Green"))
        return _give_pronoun(rng, f"{she if is_she else he} {family}", is_she)
    if chance < 0.12:
        is_she = rng.random() < 0.5
        return _give_pronoun(rng, rng.choice(("Mum", "Mom")) if is_she else "Dad", is_she)
    if chance < 0.2:
        role = rng.choice(PERSONS_BY_ROLE)
        if role.split()[-1] in ITS:
            return Person(role, "it", "it", "its")
        return _give_pronoun(rng, role, rng.random() < 0.5)
    if chance < 0.35:
        name = invent_word(rng)
        return _give_pronoun(rng, name[:1].upper() + name[1:], rng.random() < 0.5)
    is_she = rng.random() < 0.5
    return _give_pronoun(rng, rng.choice(SHE if is_she else HE), is_she)


def _give_pronoun(rng: random.Random, name: str, is_she: bool) -> Person:
    if rng.random() < 0.06:
        return Person(name, "they", "them", "their")
    return Person(name, "she", "her", "her") if is_she else Person(name, "he", "him", "his")

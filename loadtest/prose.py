"""English text from a random generator: what people ask, how they go on, and documents with facts in them.

The same draws give the same text on every machine. Sentences are whole, so lengths are met to within one.
"""

import random
from dataclasses import dataclass

TOKENS_PER_WORD = 1.2  # of this English, measured with the vocabulary of SmolLM2; servers say the true numbers


@dataclass(frozen=True, slots=True)
class Topic:
    """Words that go together."""

    name: str
    helper: str  # who answers
    things: tuple[str, ...]
    deeds: tuple[str, ...]  # what one does with a thing, before its name
    troubles: tuple[str, ...]  # of a thing, after its name
    places: tuple[str, ...]


TOPICS = (
    Topic(
        "gardening",
        "a gardener of a public garden who answers visitors",
        ("tomato plants", "old pear tree", "lavender hedge", "compost heap", "row of beans", "lawn", "climbing rose"),
        ("prune", "water", "feed", "move", "cover", "cut back"),
        ("turns yellow from below", "flowers but sets no fruit", "smells sour", "is eaten by snails", "grows crooked"),
        ("on a north-facing balcony", "behind the garage", "in heavy clay", "beside the pond", "in a raised bed"),
    ),
    Topic(
        "cooking",
        "a cook who teaches beginners in evening classes",
        ("sourdough bread", "lentil soup", "roast chicken", "plum cake", "pot of rice", "tomato sauce", "potato salad"),
        ("season", "reheat", "freeze", "double the amount of", "thicken", "bake"),
        ("tastes flat", "sticks to the pan", "stays raw in the middle", "comes out too dry", "falls apart"),
        ("in a small oven", "for twelve guests", "on a camping stove", "without any dairy", "at high altitude"),
    ),
    Topic(
        "programming",
        "a senior engineer who reviews other people's changes",
        ("web service", "import script", "cache", "test suite", "message queue", "search index", "login page"),
        ("profile", "restart", "rewrite", "monitor", "deploy", "add a limit to"),
        ("uses more memory every day", "fails only at night", "answers twice", "is slow after a restart", "deadlocks"),
        ("on two cores", "behind a proxy", "inside a container", "in the staging cluster", "with an old database"),
    ),
    Topic(
        "travel",
        "a clerk at the information desk of a railway station",
        ("night train", "ferry ticket", "rental bike", "mountain hut", "city pass", "connecting bus", "campsite"),
        ("book", "change", "cancel", "share", "find", "compare prices for"),
        ("is sold out", "leaves too early", "has no room for luggage", "arrives after midnight", "costs twice as much"),
        ("in the second week of May", "from the coast", "with two children", "across the border", "on a Sunday"),
    ),
    Topic(
        "housekeeping",
        "the caretaker of a large apartment house",
        ("washing machine", "radiator", "front door", "kitchen tap", "ceiling lamp", "extractor hood", "balcony floor"),
        ("repair", "replace", "clean", "insulate", "paint", "check"),
        ("drips at night", "makes a knocking sound", "does not close", "trips the fuse", "loses its colour"),
        ("on the fourth floor", "in the basement", "next to the staircase", "in a rented flat", "above the workshop"),
    ),
    Topic(
        "bookkeeping",
        "an accountant who looks after small companies",
        ("travel expenses", "unpaid invoice", "annual report", "cash book", "lease contract", "payroll", "inventory"),
        ("file", "correct", "split", "archive", "forecast", "explain"),
        ("does not match the bank statement", "came too late", "has the wrong date", "is missing a receipt"),
        ("for the last quarter", "in a family business", "after the merger", "in two currencies", "for the tax office"),
    ),
    Topic(
        "astronomy",
        "a guide at an observatory on open evenings",
        (
            "moons of Jupiter",
            "comet",
            "double star",
            "lunar eclipse",
            "small telescope",
            "spiral galaxy",
            "meteor shower",
        ),
        ("observe", "photograph", "sketch", "track", "find", "explain"),
        ("looks blurred", "is too faint", "drifts out of view", "appears upside down", "vanishes before dawn"),
        ("from the middle of a city", "with binoculars", "in late autumn", "without a mount", "near the horizon"),
    ),
    Topic(
        "sailing",
        "a skipper who has taught at a sailing school for twenty years",
        ("mainsail", "anchor", "tide table", "harbour entrance", "spare rope", "wooden dinghy", "night watch"),
        ("reef", "check", "stow", "practise with", "repair", "plan around"),
        ("slips in a strong wind", "jams half way", "is hard to read at night", "chafes through", "takes in water"),
        ("with an unpractised crew", "in a narrow channel", "against the current", "off a lee shore", "in thick fog"),
    ),
)

NAMES = ("Ada", "Bruno", "Carla", "Deniz", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Leo", "Mira")
MONTHS = ("January", "March", "April", "June", "July", "September", "October", "December")

OPENINGS = (
    "How do I best {deed} the {thing} {place}?",
    "My {thing} {trouble}, what should I try first?",
    "What is the difference between the {thing} and the {other}, if I want to {deed} only one of them?",
    "Can you write a short plan to {deed} the {thing} {place} within {number} days?",
    "Why is it that the {thing} {trouble} whenever I {deed} it {place}?",
    "Please explain to somebody who has never done it how to {deed} the {thing}.",
)
SHORT_OPENINGS = (
    "When should I {deed} the {thing}?",
    "Why does it matter that the {thing} {trouble}?",
    "Name {few} ways to {deed} the {thing}.",
    "Is it safe to {deed} the {thing} {place}?",
)
CONTEXT = (
    "{name} told me to {deed} it every {number} days, but since {month} the {other} {trouble} as well.",
    "I have tried it {few} times {place} and wrote down {number} notes about the {thing}.",
    "We are {few} people, we have about {number} hours a week, and none of us has much experience.",
    "Last {month} the {other} was fine, then I began to {deed} it, and after {number} days the {thing} {trouble}.",
    "I would rather not spend more than {number} euros on it, and the {other} has to stay where it is.",
    "A neighbour who lives {place} says that this is normal, {name} says that it is not.",
)
FOLLOW_UPS = (
    "Thanks. And what if the {thing} {trouble} after that?",
    "Could you say the second point again, with an example {place}?",
    "How long would that take if I {deed} the {other} at the same time?",
    "Which of these would you do first if you had only {number} minutes?",
    "I forgot to say that it is {place}. Does that change your answer?",
    "Please put that into a list of {few} steps that I can print.",
    "{name} disagrees and would rather {deed} the {other}. Who is right?",
)
EXPLANATIONS = (
    "It helps to {deed} the {thing} first, because the {other} depends on it.",
    "In most cases {few} attempts are enough, and each of them takes about {number} minutes.",
    "If the {thing} {trouble}, wait for {few} days and look at the {other} again before you change anything else.",
    "People who {deed} the {thing} {place} report that it works better after {month}.",
    "Keep a list of what you did and when, since {number} small changes are harder to undo than one.",
    "The usual mistake is to {deed} the {other} too early; then the {thing} {trouble} and nobody knows why.",
    "As a rule of thumb, count {number} percent more than you think you need, and less if it is {place}.",
)
FACTS = (
    "In {month} {year} the committee decided to {deed} the {thing} {place}, against the advice of {name}.",
    "{name} measured {count} units in the first week and only half of that in the second, when the {other} was new.",
    "The older report names {few} reasons why the {thing} {trouble}, of which the second is the most common.",
    "Everybody who wants to {deed} the {thing} {place} has to tell {name} at least {few} days before.",
    "About {number} percent of all cases concern the {other}; they take longer than those of the {thing}.",
    "According to the minutes of {month}, the {thing} {trouble} only where nobody had begun to {deed} the {other}.",
    "It was {name} who first wrote down that the {other} {trouble} whenever somebody tries to {deed} the {thing}.",
)
RULES = (
    "Answer in the language of the question and be brief.",
    "If you are not sure, say so, and name what you would need to know.",
    "Never invent names, prices or dates; say that they have to be looked up.",
    "Prefer a list of steps to a long paragraph when somebody asks how to do something.",
    "Give amounts in metric units, with the usual household measure in brackets.",
    "When a question is about something else than {topic}, say that it is not your subject.",
    "Warn clearly about whatever may hurt somebody, and tell them when to ask an expert.",
    "Do not repeat the question, and do not end with an offer of further help.",
)
CASES = (
    "A typical case: the {thing} {trouble}; then ask first whether somebody has begun to {deed} the {other}.",
    "Another one: somebody wants to {deed} the {thing} {place}; then {few} short hints are enough.",
    "It also happens that people {deed} the {thing} although the {other} {trouble}; tell them to do one at a time.",
    "If somebody asks about the {thing} {place}, ask how long they have had it before you say anything else.",
)


def count_tokens(text: str) -> int:
    """An estimate."""
    return round(len(text.split()) * TOKENS_PER_WORD)


def sentence(draw: random.Random, templates: tuple[str, ...], topic: Topic) -> str:
    """One of the templates, filled in."""
    thing, other = draw.sample(topic.things, 2)
    words = {
        "topic": topic.name,
        "thing": thing,
        "other": other,
        "deed": draw.choice(topic.deeds),
        "trouble": draw.choice(topic.troubles),
        "place": draw.choice(topic.places),
        "name": draw.choice(NAMES),
        "month": draw.choice(MONTHS),
        "few": draw.choice(("two", "three", "four", "five")),
        "number": draw.randrange(11, 99),
        "count": draw.randrange(101, 9999),
        "year": draw.randrange(1952, 2026),
    }
    return draw.choice(templates).format(**words)


def _lengthened(draw: random.Random, text: str, templates: tuple[str, ...], topic: Topic, num_tokens: int) -> str:
    parts, num_words, left = [text], len(text.split()), list(templates)
    while num_words * TOKENS_PER_WORD < num_tokens:
        left = left or list(templates)  # each once, before one comes again
        template = left.pop(draw.randrange(len(left)))
        parts.append(sentence(draw, (template,), topic))
        num_words += len(parts[-1].split())
    return " ".join(parts)


def opening(draw: random.Random, topic: Topic, num_tokens: int) -> str:
    """What somebody asks first: a question, behind as much of their story as the length allows."""
    templates = SHORT_OPENINGS if num_tokens < 20 else OPENINGS
    question = sentence(draw, templates, topic)
    left = num_tokens - count_tokens(question)
    if left < 12:
        return question
    return _lengthened(draw, sentence(draw, CONTEXT, topic), CONTEXT, topic, left) + " " + question


def follow_up(draw: random.Random, topic: Topic, num_tokens: int) -> str:
    """What they say to an answer."""
    return _lengthened(draw, sentence(draw, FOLLOW_UPS, topic), CONTEXT, topic, num_tokens)


def explanation(draw: random.Random, topic: Topic, num_tokens: int) -> str:
    """What an answer may be like."""
    return _lengthened(draw, sentence(draw, EXPLANATIONS, topic), EXPLANATIONS, topic, num_tokens)


def system_prompt(topic: Topic, num_tokens: int) -> str:
    """The same for everybody who asks about the topic."""
    draw = random.Random(f"system prompt {topic.name}")
    rules = " ".join(RULES).format(topic=topic.name)
    start = f"You are {topic.helper}. People ask you about {topic.name}. {rules}"
    return _lengthened(draw, start, CASES, topic, num_tokens)


def document(draw: random.Random, topic: Topic, num_tokens: int) -> str:
    """Numbered sections of facts, no two documents alike."""
    title = f"Report {draw.randrange(1000, 9999)} on {topic.name}, {draw.choice(MONTHS)} {draw.randrange(1990, 2026)}"
    parts, length = [title], count_tokens(title)
    while length < num_tokens:
        left = num_tokens - length
        section = _lengthened(draw, sentence(draw, FACTS, topic), FACTS, topic, min(left, draw.randrange(90, 220)))
        parts.append(f"{len(parts)}. {section}")
        length += count_tokens(parts[-1])
    return "\n\n".join(parts)

"""What users do when they come. Each takes a visit; another one is a function here and a class in ``users``."""

import json
import math

from loadtest.dataset import Conversation
from loadtest.mix.chat import Patience
from loadtest.mix.visit import Message, Visit

FIELDS = {"subject", "urgency", "is_question", "people"}
FORM = {
    "type": "object",
    "properties": {
        "subject": {"enum": ["gardening", "cooking", "programming", "travel", "housekeeping", "other"]},
        "urgency": {"enum": ["low", "normal", "high"]},
        "is_question": {"type": "boolean"},
        "people": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": sorted(FIELDS),
    "additionalProperties": False,
}
NAMED_FORM = {"type": "json_schema", "json_schema": {"name": "note", "strict": True, "schema": FORM}}


def _hold(visit: Visit, name: str, conversation: Conversation) -> None:
    """Turn by turn, with the server's answers between; ends early where there is none."""
    messages: list[Message] = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    for number, turn in enumerate(conversation.turns):
        if number:
            visit.think()
        if visit.is_over:
            return
        messages.append({"role": "user", "content": turn.text})
        answers = visit.say(f"{name}, {'later turns' if number else 'first turn'}", messages, turn.max_tokens)
        if answers is None:
            return
        messages.append({"role": "assistant", "content": answers[0]})


def chat(visit: Visit) -> None:
    """Several turns below a system prompt that others have, too: what a prefix cache is for."""
    _hold(visit, "chat", visit.world.dataset.conversation(visit.draw))


def ask_shortly(visit: Visit) -> None:
    """A short question, a short answer."""
    turn = visit.world.dataset.short(visit.draw)
    visit.say("short", [{"role": "user", "content": turn.text}], turn.max_tokens)


def ask_at_length(visit: Visit) -> None:
    """A long story, a long answer."""
    turn = visit.world.dataset.long(visit.draw)
    visit.say("long", [{"role": "user", "content": turn.text}], turn.max_tokens)


def ask_about_a_document(visit: Visit) -> None:
    """A prompt of thousands of tokens, and another question about the same text."""
    _hold(visit, "document", visit.world.dataset.document(visit.draw))


def fill_in_a_form(visit: Visit) -> None:
    """Structured output; an answer of another shape is a failure of the server."""
    text = f"Fill in the form about this note.\n\n{visit.world.dataset.report(visit.draw)}"
    messages = [{"role": "user", "content": text}]
    visit.say("structured", messages, 128, check=wrong_with_form, response_format=NAMED_FORM)


def wrong_with_form(text: str) -> str:
    """Why it is not what the schema asks for; empty if it is."""
    try:
        filled = json.loads(text)
    except ValueError:
        return f"structured output is no JSON: {text[:80]!r}"
    if not isinstance(filled, dict) or set(filled) != FIELDS:
        return f"structured output does not fit its schema: {text[:80]!r}"
    return ""


def ask_for_several(visit: Visit) -> None:
    """n > 1: one prompt, several answers to choose from."""
    turn = visit.world.dataset.short(visit.draw)
    num_choices = visit.world.settings.num_choices
    messages = [{"role": "user", "content": turn.text}]
    visit.say(f"n = {num_choices}", messages, 2 * turn.max_tokens, n=num_choices)


def lose_patience(visit: Visit) -> None:
    """Half of them hang up after some time, often before the first word, and half while they read."""
    turn = visit.world.dataset.long(visit.draw)
    if visit.draw.random() < 0.5:
        seconds = visit.draw.lognormvariate(math.log(visit.world.settings.patience), 0.5)
        patience = Patience(seconds=seconds)
    else:
        patience = Patience(chunks=visit.draw.randrange(3, 30))
    visit.say("impatient", [{"role": "user", "content": turn.text}], turn.max_tokens, patience=patience)


def flood(visit: Visit) -> None:
    """One request of a burst, of the usual length."""
    turn = visit.world.dataset.conversation(visit.draw).turns[0]
    visit.say("flood", [{"role": "user", "content": turn.text}], turn.max_tokens)

"""``python -m loadtest.dataset --conversations N --output FILE``: conversations in ShareGPT's format, from a seed.

What the users of the load test say: made up here, or taken from such a file. A conversation has its users' turns only;
answers are the server's. Lengths are lognormal, as those of people are, and estimated by words.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest import prose
from loadtest.sharegpt import DatasetError, Shared, read


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens, lognormal: half of all are below ``median``, and two thirds within a factor of e^``sigma``."""

    median: float
    sigma: float
    least: int
    most: int

    def draw(self, draw: random.Random) -> int:
        """One of them."""
        drawn = draw.lognormvariate(math.log(self.median), self.sigma)
        return min(self.most, max(self.least, round(drawn)))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of everything that is said."""

    prompt: Lengths = Lengths(40, 0.7, 8, 400)
    output: Lengths = Lengths(64, 0.6, 16, 256)
    document_tokens: int = 4000
    system_tokens: int = 250
    num_system_prompts: int = 4
    most_turns: int = 5


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and the most tokens that they want to read."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """``system`` is shared with others, or empty."""

    system: str
    turns: tuple[Turn, ...]


class Dataset:
    """Everything follows from the generator that is passed in: the same draws, the same words."""

    def __init__(self, sizes: Sizes, shared: Shared | None = None) -> None:
        self._sizes = sizes
        self._shared = [] if shared is None else shared.conversations
        by_length = sorted(self._shared, key=lambda one: len(one[0][0]))
        self._shorter, self._longer = by_length[: (len(by_length) + 1) // 2], by_length[len(by_length) // 2 :]
        self._topics = prose.TOPICS[: sizes.num_system_prompts]
        # Few prompts are used much and many a little: by Zipf's law.
        self._weights = [1 / rank for rank in range(1, len(self._topics) + 1)]
        self._systems = {topic.name: prose.system_prompt(topic, sizes.system_tokens) for topic in self._topics}

    def conversation(self, draw: random.Random) -> Conversation:
        """Several turns below one of the shared system prompts."""
        topic = draw.choices(self._topics, self._weights)[0]
        if self._shared:
            turns = draw.choice(self._shared)[: self._sizes.most_turns]
            return Conversation(self._systems[topic.name], tuple(self._shared_turn(draw, *turn) for turn in turns))
        texts = [prose.opening(draw, topic, self._sizes.prompt.draw(draw))]
        for _ in range(draw.randrange(1, self._sizes.most_turns)):
            texts.append(prose.follow_up(draw, topic, self._sizes.prompt.draw(draw) // 2))
        turns_said = tuple(Turn(text, self._sizes.output.draw(draw)) for text in texts)
        return Conversation(self._systems[topic.name], turns_said)

    def short(self, draw: random.Random) -> Turn:
        """A short question for a short answer."""
        if self._shared:
            text = draw.choice(self._shorter)[0][0]
        else:
            text = prose.opening(draw, draw.choice(prose.TOPICS), self._sizes.prompt.least)
        return Turn(text, self._sizes.output.least)

    def long(self, draw: random.Random) -> Turn:
        """A long story for a long answer."""
        if self._shared:
            text = draw.choice(self._longer)[0][0]
        else:
            text = prose.opening(draw, draw.choice(prose.TOPICS), self._sizes.prompt.most)
        return Turn(text, self._sizes.output.most)

    def document(self, draw: random.Random) -> Conversation:
        """Two questions about a text of ``document_tokens``: a cache may know it when the second comes."""
        topic = draw.choice(prose.TOPICS)
        text = prose.document(draw, topic, self._sizes.document_tokens)
        first = f"{text}\n\nWhat does section {draw.randrange(1, 9)} say about the {draw.choice(topic.things)}?"
        second = prose.follow_up(draw, topic, self._sizes.prompt.least)
        return Conversation("", tuple(Turn(asked, self._sizes.output.draw(draw)) for asked in (first, second)))

    def report(self, draw: random.Random) -> str:
        """A note out of which somebody wants a form filled in."""
        topic = draw.choice(prose.TOPICS)
        return prose.explanation(draw, topic, self._sizes.prompt.draw(draw)) + " " + prose.opening(draw, topic, 20)

    def _shared_turn(self, draw: random.Random, text: str, answer: str | None) -> Turn:
        if answer is None:
            return Turn(text, self._sizes.output.draw(draw))
        return Turn(text, min(self._sizes.output.most, max(1, prose.count_tokens(answer))))

    def sharegpt(self, draw: random.Random, number: int) -> dict[str, object]:
        """One conversation with answers made up, too, for other tools."""
        said = [{"from": "system", "value": (made := self.conversation(draw)).system}]
        for turn in made.turns:
            said.append({"from": "human", "value": turn.text})
            answer = prose.explanation(draw, draw.choice(self._topics), turn.max_tokens)
            said.append({"from": "gpt", "value": answer})
        return {"id": f"made-up-{number}", "conversations": said}


def make(path: str | None, sizes: Sizes) -> Dataset:
    """With the conversations of a ShareGPT file, or without. Raises DatasetError."""
    return Dataset(sizes, None if path is None else read(Path(path)))


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.dataset", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--conversations", type=int, default=100, metavar="N")
    parser.add_argument("--output", type=Path, help="a file; standard output unless given")
    parser.add_argument("--check", type=Path, metavar="FILE", help="only say what is in a ShareGPT file")
    options = parser.parse_args(arguments)
    if options.check:
        try:
            found = read(options.check)
        except DatasetError as error:
            parser.error(str(error))
        sys.stdout.write(f"{found}\n")
        return 0
    dataset = Dataset(Sizes())
    draws = (random.Random(f"{options.seed} {number}") for number in range(options.conversations))
    text = json.dumps([dataset.sharegpt(draw, number) for number, draw in enumerate(draws)], indent=1)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What users say: the same from the same seed, of the lengths that were asked for; ShareGPT files and their faults."""

import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.dataset import Dataset, Lengths, Sizes, main, make
from loadtest.prose import TOPICS, count_tokens
from loadtest.sharegpt import DatasetError, read


def test_the_same_seed_the_same_words() -> None:
    made = [Dataset(Sizes()).conversation(random.Random(7)) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0] != Dataset(Sizes()).conversation(random.Random(8))
    script = (
        "import random, sys; from loadtest.dataset import Dataset, Sizes\n"
        "sys.stdout.write(repr(Dataset(Sizes()).conversation(random.Random(7))))"
    )
    command = [sys.executable, "-c", script]
    other = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert other.stdout == repr(made[0])


def test_conversations_have_turns_and_shared_system_prompts() -> None:
    dataset = Dataset(Sizes(num_system_prompts=3, system_tokens=250))
    made = [dataset.conversation(random.Random(number)) for number in range(200)]
    systems = [one.system for one in made]
    assert len(set(systems)) == 3
    shares = sorted((systems.count(one) for one in set(systems)), reverse=True)
    assert shares[0] > 1.5 * shares[2]  # some are used more than others
    assert all(250 <= count_tokens(one) <= 300 for one in systems)
    assert {len(one.turns) for one in made} == {2, 3, 4, 5}
    first = [one.turns[0].text for one in made]
    assert len(set(first)) > 190
    assert all(text[0].isupper() and text[-1] in ".?" and "{" not in text for text in first)


def test_lengths_are_lognormal_within_bounds() -> None:
    lengths, draw = Lengths(64, 0.6, 16, 256), random.Random(1)
    drawn = [lengths.draw(draw) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(64, rel=0.1)
    assert statistics.mean(drawn) > 70  # the tail is long on one side
    assert (min(drawn), max(drawn)) == (16, 256)


@pytest.mark.parametrize("size", [500, 4000])
def test_a_document_has_its_size_and_two_questions(size: int) -> None:
    dataset = Dataset(Sizes(document_tokens=size))
    made = [dataset.document(random.Random(number)) for number in range(5)]
    assert all(size <= count_tokens(one.turns[0].text) <= size + 80 for one in made)
    assert len({one.turns[0].text[:200] for one in made}) == 5
    assert {len(one.turns) for one in made} == {2}


def test_short_is_shorter_than_long() -> None:
    dataset, draw = Dataset(Sizes()), random.Random(3)
    for _ in range(50):
        short, long = dataset.short(draw), dataset.long(draw)
        assert count_tokens(short.text) < 40 < 300 < count_tokens(long.text)
        assert short.max_tokens < long.max_tokens
    assert len(TOPICS) >= 8


def test_what_it_writes_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.json"
    assert main(["--seed", "5", "--conversations", "9", "--output", str(path)]) == 0
    first = path.read_bytes()
    main(["--seed", "5", "--conversations", "9", "--output", str(path)])
    assert path.read_bytes() == first
    assert main(["--check", str(path)]) == 0
    assert "9 conversations with" in capsys.readouterr().out
    dataset = make(str(path), Sizes(most_turns=2))
    made = dataset.conversation(random.Random(1))
    said = {turn["value"] for item in json.loads(first) for turn in item["conversations"] if turn["from"] == "human"}
    assert {turn.text for turn in made.turns} <= said
    assert len(made.turns) == 2
    assert dataset.short(random.Random(1)).text in said
    assert len(dataset.short(random.Random(1)).text) < len(dataset.long(random.Random(1)).text)


def test_answers_of_a_file_say_how_long_answers_are(tmp_path: Path) -> None:
    said = [("gpt", "before anybody asked"), ("human", "How?"), ("gpt", "word " * 100), ("human", "And?")]
    items = [{"conversations": [{"from": name, "value": text} for name, text in said]}, {"conversations": []}]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(items))
    found = read(path)
    assert found.num_left_out == 1
    assert [text for text, _ in found.conversations[0]] == ["How?", "And?"]
    assert make(str(path), Sizes()).conversation(random.Random(0)).turns[0].max_tokens == 120


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2", "no JSON: Expecting ',' delimiter at line 1, column 6"),
        ('{"conversations": []}', "must be a list of conversations, is an object"),
        ("[1]", "item 0 must be an object, is a number"),
        ('[{"conversations": []}, {"turns": []}]', "item 1 must have a list 'conversations', has nothing there"),
        ('[{"conversations": ["hi"]}]', "item 0, turn 0 must be an object, is a text"),
        ('[{"conversations": [{"from": "human"}]}]', "item 0, turn 0 must have the text 'value', has nothing there"),
        ('[{"conversations": [{"value": "x"}]}]', "item 0, turn 0 must have the text 'from', has nothing there"),
        (
            '[{"conversations": [{"from": "cat", "value": "x"}]}]',
            "item 0, turn 0 is from 'cat', which is none of",
        ),
        ('[{"conversations": []}]', "none of the 1 conversations has a question"),
        ("[]", "none of the 0 conversations has a question"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "faulty.json"
    path.write_text(text)
    with pytest.raises(DatasetError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {said}")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        read(tmp_path / "missing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe[")
    with pytest.raises(DatasetError, match="no UTF-8 text: invalid start byte at byte 0"):
        read(tmp_path / "bytes.json")

"""The official client against the real processes: every way to ask gives the same answer."""

import asyncio
from typing import Any

import openai
import pytest
from e2e_http import CHAT, COMP, chat, comp, post, stream
from e2e_process import ServerProcess

MESSAGES: list[Any] = [{"role": "user", "content": "Which way to the sea?"}]


def test_models(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert card.id == "tiny"
    assert card.model_dump()["max_model_len"] == 32768
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("n", [1, 3])
def test_chat_streamed_is_chat_whole(client: openai.OpenAI, n: int) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "n": n, "seed": 5, "max_tokens": 30}
    whole = client.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == list(range(n))
    texts = [""] * n
    reasons: list[str | None] = [None] * n
    roles: list[str | None] = [None] * n
    for chunk in client.chat.completions.create(**asked, stream=True):
        assert chunk.object == "chat.completion.chunk"
        for choice in chunk.choices:
            assert reasons[choice.index] is None  # nothing after the end
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] = choice.delta.role or roles[choice.index]
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert roles == ["assistant"] * n


@pytest.mark.parametrize("n", [1, 3])
def test_completion_streamed_is_completion_whole(client: openai.OpenAI, n: int) -> None:
    prompts = ["The kettle", "A baker asks"]
    asked: dict[str, Any] = {"model": "tiny", "prompt": prompts, "n": n, "seed": 5, "max_tokens": 20, "echo": True}
    whole = client.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == list(range(2 * n))
    texts = [""] * (2 * n)
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert all(text.startswith(prompts[index // n]) for index, text in enumerate(texts))
    assert whole.usage is not None
    assert whole.usage.completion_tokens == sum(
        len(choice.logprobs.tokens or ())
        for choice in client.completions.create(**asked | {"echo": False, "logprobs": 0}).choices
        if choice.logprobs
    )


def test_many_at_once_with_the_async_client_are_what_each_is_alone(server: ServerProcess) -> None:
    prompts = [f"{number} ships pass the lighthouse" for number in range(24)]  # more than there are slots
    alone = [post(server, COMP, comp(prompt, temperature=1, seed=9, max_tokens=12)) for prompt in prompts]

    async def one(client: openai.AsyncOpenAI, prompt: str, is_stream: bool) -> str:
        asked: dict[str, Any] = {"model": "tiny", "prompt": prompt, "temperature": 1, "seed": 9, "max_tokens": 12}
        if not is_stream:
            return str((await client.completions.create(**asked)).choices[0].text)
        return "".join([chunk.choices[0].text async for chunk in await client.completions.create(**asked, stream=True)])

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, prompt, index % 2 == 0) for index, prompt in enumerate(prompts)))

    assert asyncio.run(together()) == [answer["choices"][0]["text"] for answer in alone]


def test_seeds(server: ServerProcess) -> None:
    def texts(**fields: Any) -> list[str]:
        answer = post(server, CHAT, chat(**{"temperature": 1, "max_tokens": 24, **fields}))
        return [choice["message"]["content"] for choice in answer["choices"]]

    four = texts(n=4, seed=7)
    assert len(set(four)) == 4
    assert texts(n=4, seed=7) == four
    assert texts(n=1, seed=7) == four[:1]
    assert texts(n=4, seed=8) != four
    assert texts(n=4) != texts(n=4)
    first, second = texts(n=2, temperature=0)
    assert first == second


def test_more_choices_than_slots(server: ServerProcess) -> None:
    """n may exceed max_num_seqs; each choice is what it would be among fewer."""
    asked = comp("The kettle sings", temperature=1, seed=3, max_tokens=8)
    many = post(server, COMP, {**asked, "n": 40})["choices"]
    assert [choice["index"] for choice in many] == list(range(40))
    few = post(server, COMP, {**asked, "n": 3})["choices"]
    assert [choice["text"] for choice in many[:3]] == [choice["text"] for choice in few]


def test_chat_logprobs(server: ServerProcess) -> None:
    asked = chat(max_tokens=10, logprobs=True, top_logprobs=5, ignore_eos=True)
    whole = post(server, CHAT, asked)["choices"][0]["logprobs"]["content"]
    assert len(whole) == 10
    for entry in whole:
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert entry["logprob"] == values[0] <= 0  # greedy
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
    streamed = stream(server, CHAT, asked)
    assert [entry for choice in streamed.choice() for entry in (choice["logprobs"] or {}).get("content", [])] == whole
    bare = post(server, CHAT, chat(max_tokens=3, logprobs=True, ignore_eos=True))["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in bare] == [[], [], []]
    assert post(server, CHAT, chat(max_tokens=3))["choices"][0]["logprobs"] is None


def test_logprobs_do_not_depend_on_the_sampling(server: ServerProcess) -> None:
    """They are of the raw logits: masked alternatives stay finite, the values those of an unmasked request."""
    asked = comp("correct horse battery", logprobs=5, max_tokens=1)
    plain = post(server, COMP, asked)["choices"][0]["logprobs"]["top_logprobs"]
    limited = post(server, COMP, {**asked, "temperature": 1, "top_k": 1})["choices"][0]["logprobs"]["top_logprobs"]
    assert limited == plain


def test_echo_with_logprobs(server: ServerProcess) -> None:
    """What evaluation harnesses send."""
    text = "Paris, 日本 and the lighthouse keeper"
    asked = comp(text, echo=True, logprobs=1)
    none = post(server, COMP, {**asked, "max_tokens": 0})
    (choice,) = none["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == text
    assert choice["finish_reason"] == "length"
    assert none["usage"]["completion_tokens"] == 0
    assert len(logprobs["tokens"]) == none["usage"]["prompt_tokens"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])

    four = post(server, COMP, {**asked, "max_tokens": 4, "ignore_eos": True})["choices"][0]
    assert four["text"].startswith(text)
    assert len(four["logprobs"]["tokens"]) == len(logprobs["tokens"]) + 4
    assert four["logprobs"]["token_logprobs"][: len(logprobs["tokens"])] == logprobs["token_logprobs"]
    offsets = four["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[len(logprobs["tokens"])] == len(text)

    streamed = stream(server, COMP, {**asked, "max_tokens": 4, "ignore_eos": True})
    assert streamed.text() == four["text"]
    parts = [part["logprobs"] for part in streamed.choice() if part["logprobs"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts for value in part[name]] == four["logprobs"][name]


def test_echo_of_ids_is_echo_of_their_text(server: ServerProcess) -> None:
    text = "A kettle sings"
    ids = post(server, "/tokenize", {"prompt": text})["tokens"]
    asked = {"echo": True, "logprobs": 0, "max_tokens": 3}
    by_text, by_ids = (post(server, COMP, comp(prompt, **asked))["choices"] for prompt in (text, ids))
    assert by_ids == by_text
    both = post(server, COMP, comp([text, text], **asked))["choices"]
    assert [choice["text"] for choice in both] == [by_text[0]["text"]] * 2


def test_tokenize_round_trip(server: ServerProcess) -> None:
    text = "naïve 🙂 日本語 <|im_end|>"
    ids = post(server, "/tokenize", {"prompt": text})
    assert ids["count"] == len(ids["tokens"])
    assert post(server, "/detokenize", {"tokens": ids["tokens"]}) == {"prompt": text}
    # As content of a message the same text must not end the turn: its marker is no control token there.
    content = post(server, "/tokenize", {"messages": [{"role": "user", "content": text}]})["tokens"]
    bare = post(server, "/tokenize", {"messages": [{"role": "user", "content": ""}]})["tokens"]
    assert content.count(2) == bare.count(2) == 1
    assert 2 in ids["tokens"]


@pytest.mark.parametrize(
    ("options", "has_null", "has_usage", "is_continuous"),
    [
        (None, False, False, False),
        ({}, False, False, False),
        ({"include_usage": False}, False, False, False),
        ({"include_usage": True}, True, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True, True),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMP])
def test_stream_options(
    server: ServerProcess, path: str, options: Any, has_null: bool, has_usage: bool, is_continuous: bool
) -> None:
    asked = (chat if path == CHAT else comp)(max_tokens=6, ignore_eos=True, n=2)
    usage = post(server, path, asked)["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    *chunks, last = stream(server, path, {**asked, "stream_options": options}).chunks
    if not has_usage:
        assert all("usage" not in chunk for chunk in [*chunks, last])
        return
    assert last["choices"] == []
    counts = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert counts == {name: usage[name] for name in counts}
    if is_continuous:
        so_far = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert so_far == sorted(so_far)
        assert so_far[-1] == 12
    else:
        assert all(chunk["usage"] is None for chunk in chunks)


def test_the_models_own_ends(server: ServerProcess) -> None:
    """Every end that the folder declares ends the text, unless told otherwise; the marker is not shown."""
    for token_id in (0, 2):
        asked = comp(max_tokens=5, logit_bias={str(token_id): 100})
        (choice,) = post(server, COMP, asked)["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        (choice,) = post(server, COMP, {**asked, "ignore_eos": True})["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "length")
        (choice,) = post(server, COMP, {**asked, "ignore_eos": True, "skip_special_tokens": False})["choices"]
        assert choice["text"] == {0: "<|endoftext|>", 2: "<|im_end|>"}[token_id] * 5
        answer = post(server, COMP, {**asked, "min_tokens": 3})
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == 4  # three others, then the end


def test_bans_hold(server: ServerProcess) -> None:
    """What may not be drawn is not drawn: only the allowed ids, and of these no bad word and nothing biased away."""
    ids = post(server, "/tokenize", {"prompt": "e a k"})["tokens"]
    assert len(ids) == 3
    asked = comp(max_tokens=40, temperature=1, seed=6, ignore_eos=True, allowed_token_ids=ids)

    def drawn(**fields: object) -> set[str]:
        return set(post(server, COMP, {**asked, **fields, "logprobs": 0})["choices"][0]["logprobs"]["tokens"])

    assert drawn() == {"e", " a", " k"}
    assert drawn(bad_words=["a"]) == {"e", " k"}
    assert drawn(logit_bias={str(ids[2]): -100}) == {"e", " a"}
    text = post(server, COMP, {**asked, "bad_words": ["a k"]})["choices"][0]["text"]
    assert " a" in text
    assert " k" in text
    assert " a k" not in text

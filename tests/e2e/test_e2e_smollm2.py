"""The demo model's real weights through the real processes, against transformers in float32.

While a server computes on its core, transformers computes the same here on another.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from e2e_http import CHAT, COMP, post, stream
from e2e_process import ServerProcess

from octavo.model_source import resolve_model

pytestmark = pytest.mark.timeout(400)  # the first start on a machine converts the model
NUM_TOKENS = 1400  # more than attention takes in one segment, which is 1,024
NUM_QUANTIZED = 800
ANSWER = "The capital of France is Paris."
OPTIONS = ("--served-model-name", "smollm2", "--max-model-len", "2048", "--max-num-seqs", "4")


@pytest.fixture(scope="module")
def folder() -> Path:
    """Converted here, once, whatever the cache is like."""
    return resolve_model("smollm2")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Iterator[Any]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    yield model.eval()
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def prose(tokenizer: Any) -> list[int]:
    ids: list[int] = tokenizer((Path(__file__).parent / "prose.txt").read_text()).input_ids[:NUM_TOKENS]
    assert len(ids) == NUM_TOKENS
    return ids


@pytest.fixture(scope="module")
def bfloat16(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """bfloat16 is the default."""
    with ServerProcess(tmp_path_factory.mktemp("bfloat16"), str(folder), *OPTIONS) as process:
        yield process.wait_ready()
        process.check_healthy()


@pytest.fixture(scope="module")
def float32(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("float32"), str(folder), "--dtype", "float32", *OPTIONS) as process:
        yield process.wait_ready()
        process.check_healthy()


def at_once(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    with ThreadPoolExecutor(1) as executor:
        started = executor.submit(first)
        result = second()
        return started.result(), result


def check_answer(server: ServerProcess, question: str) -> None:
    asked = {"model": "smollm2", "messages": [{"role": "user", "content": question}], "temperature": 0}
    (choice,) = post(server, CHAT, asked)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")
    streamed = stream(server, CHAT, asked)
    assert (streamed.text(), streamed.finish_reasons()) == (ANSWER, ["stop"])


def test_the_capital_of_france_in_bfloat16(bfloat16: ServerProcess) -> None:
    check_answer(bfloat16, "Name the capital of France.")


def test_the_capital_of_france_in_float32(float32: ServerProcess) -> None:
    """In bfloat16 the answer to this question is a coin toss."""
    check_answer(float32, "What is the capital of France?")


def test_agreement_over_a_long_text(bfloat16: ServerProcess, reference: Any, tokenizer: Any, prose: list[int]) -> None:
    """bfloat16 finds the most likely token of float32 at 98 % of the positions or more, and nearly its value."""
    asked = {"model": "smollm2", "prompt": prose, "echo": True, "max_tokens": 0, "logprobs": 1}
    answer, logits = at_once(lambda: post(bfloat16, COMP, asked), lambda: prompt_logits(reference, prose))
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == NUM_TOKENS
    # The most likely token comes first.
    found = [next(iter(top)) for top in logprobs["top_logprobs"][1:]]
    best = [tokenizer.decode([token_id]) for token_id in logits.argmax(-1).tolist()]
    assert sum(map(str.__eq__, found, best)) / len(best) >= 0.98
    distance = (torch.tensor(logprobs["token_logprobs"][1:]) - of_the_tokens(logits, prose)).abs()
    assert distance.mean() < 0.03
    assert distance.max() < 0.5


def perplexity(server: ServerProcess, ids: list[int]) -> float:
    asked = {"model": "smollm2", "prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 0}
    (choice,) = post(server, COMP, asked)["choices"]
    logprobs = choice["logprobs"]["token_logprobs"][1:]
    return math.exp(-sum(logprobs) / len(logprobs))


@pytest.fixture(scope="module")
def perplexity_in_bfloat16(bfloat16: ServerProcess, prose: list[int]) -> float:
    return perplexity(bfloat16, prose[:NUM_QUANTIZED])


@pytest.mark.parametrize(
    ("flag", "value", "most"),
    [("--quantization", "int8", 1.02), ("--kv-cache-dtype", "int8", 1.02), ("--quantization", "int4", 1.2)],
)
def test_how_near_quantization_stays_to_bfloat16(
    flag: str, value: str, most: float, perplexity_in_bfloat16: float, folder: Path, prose: list[int], tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, str(folder), flag, value, *OPTIONS) as process:
        assert perplexity(process.wait_ready(), prose[:NUM_QUANTIZED]) < most * perplexity_in_bfloat16
        check_answer(process, "Name the capital of France.")


def test_logprobs_in_float32(float32: ServerProcess, reference: Any, tokenizer: Any, prose: list[int]) -> None:
    ids = prose[:200]
    asked = {"model": "smollm2", "prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 5}
    answer, logits = at_once(lambda: post(float32, COMP, asked), lambda: prompt_logits(reference, ids))
    logprobs = answer["choices"][0]["logprobs"]
    distance = (torch.tensor(logprobs["token_logprobs"][1:]) - of_the_tokens(logits, ids)).abs()
    assert distance.max() < 1e-3
    values, top_ids = logits.log_softmax(-1).topk(5)
    for position, top in enumerate(logprobs["top_logprobs"][1:]):
        expected = dict(zip(map(tokenizer.decode, top_ids[position].tolist()), values[position].tolist(), strict=True))
        assert set(expected) <= set(top)
        assert all(abs(top[token] - value) < 1e-3 for token, value in expected.items())


def test_the_greedy_continuation_in_float32(
    float32: ServerProcess, reference: Any, tokenizer: Any, prose: list[int]
) -> None:
    """64 tokens, token for token."""
    ids, count = prose[:60], 64
    asked = {
        "model": "smollm2",
        "prompt": ids,
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,
    }

    def continue_here() -> list[int]:
        with torch.inference_mode():
            options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
            found = reference.generate(torch.tensor([ids]), max_new_tokens=count, **options)
        continued: list[int] = found[0, len(ids) :].tolist()
        return continued

    answer, expected = at_once(lambda: post(float32, COMP, asked), continue_here)
    (choice,) = answer["choices"]
    assert choice["text"] == tokenizer.decode(expected)
    assert choice["logprobs"]["tokens"] == [tokenizer.decode([token_id]) for token_id in expected]


def prompt_logits(reference: Any, ids: list[int]) -> torch.Tensor:
    """[n - 1, vocab]: what precedes each token but the first."""
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([ids])).logits[0, :-1]
    return logits


def of_the_tokens(logits: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of the tokens that came."""
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

"""lm-evaluation-harness over HTTP: its log-likelihoods are those of transformers."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from clients_cases import API_KEY, MODEL
from clients_tree import MAIN_PYTHON, ROOT
from e2e_process import ServerProcess

TASKS = Path(__file__).parent / "lm_eval"


@pytest.fixture(scope="module")
def float32_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    arguments = ("smollm2", "--dtype", "float32", "--max-model-len", "2048")
    with ServerProcess(tmp_path_factory.mktemp("float32"), *arguments, all_cores=True) as process:
        yield process.wait_ready()


@pytest.fixture
def float32(float32_process: ServerProcess) -> Iterator[ServerProcess]:
    yield float32_process
    float32_process.check_healthy()


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``evaluate(task, ...)``: the results of one task and its samples."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    import lm_eval
    from lm_eval.tasks import TaskManager

    def run(task: str, **arguments: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        manager = TaskManager(include_path=str(TASKS), include_defaults=False)
        found = lm_eval.simple_evaluate(
            tasks=[task], task_manager=manager, log_samples=True, bootstrap_iters=0, **arguments
        )
        return found["results"][task], found["samples"][task]

    return run


@dataclass(frozen=True, slots=True)
class Oracle:
    """What transformers says: every question with each of its answers, and the pair's log-likelihood."""

    pairs: list[tuple[str, str]]
    values: list[tuple[float, bool]]
    num_right: int


@pytest.fixture(scope="module")
def oracle(model_folder: Path) -> Oracle:
    items = [json.loads(line) for line in (TASKS / "choices.jsonl").read_text().splitlines()]
    pairs = [(f"Question: {item['question']}\nAnswer:", f" {answer}") for item in items for answer in item["choices"]]
    command = [MAIN_PYTHON, TASKS / "oracle.py", model_folder]
    found = subprocess.run(command, input=json.dumps(pairs), capture_output=True, text=True, timeout=200, check=False)
    assert found.returncode == 0, found.stderr
    values = [(value, is_greedy) for value, is_greedy in json.loads(found.stdout)]
    sums = [value for value, _ in values]
    best = [sums[start : start + 3].index(max(sums[start : start + 3])) for start in range(0, len(sums), 3)]
    return Oracle(pairs, values, sum(item["answer"] == one for item, one in zip(items, best, strict=True)))


@pytest.mark.parametrize("is_tokenized", [True, False], ids=["ids", "text"])
def test_loglikelihoods_are_those_of_transformers(
    float32: ServerProcess, model_folder: Path, oracle: Oracle, evaluate: Any, is_tokenized: bool
) -> None:
    arguments = {
        "model": MODEL,
        "base_url": f"{float32.base_url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(model_folder),
        "tokenized_requests": is_tokenized,
        "num_concurrent": 4,
        "max_retries": 1,
        "max_length": 2048,
    }
    results, samples = evaluate("octavo_choices", model="local-completions", model_args=arguments)
    assert [tuple(pair) for sample in samples for pair in sample["arguments"]] == oracle.pairs
    answers = [answer for sample in samples for answer in sample["filtered_resps"]]
    for (value, is_greedy), (expected, is_best) in zip(answers, oracle.values, strict=True):
        assert abs(value - expected) < 1e-2
        assert is_greedy is is_best
    assert results["acc,none"] == pytest.approx(oracle.num_right / 10)


def test_chat_generates_what_the_official_client_gets(base_url: str, evaluate: Any) -> None:
    arguments = {"model": MODEL, "base_url": f"{base_url}/chat/completions", "num_concurrent": 4, "max_retries": 1}
    results, samples = evaluate(
        "octavo_generate", model="local-chat-completions", model_args=arguments, apply_chat_template=True
    )
    assert len(samples) == 10
    assert 0 <= results["exact_match,none"] <= 1
    with openai.OpenAI(base_url=base_url, api_key=API_KEY, max_retries=0) as client:
        for sample in samples:
            messages: Any = [{"role": "user", "content": sample["doc"]["question"]}]
            stop = ["\n\n", "Question:"]
            answer = client.chat.completions.create(
                model=MODEL, messages=messages, temperature=0, max_tokens=24, stop=stop
            )
            assert sample["resps"] == [[answer.choices[0].message.content]]

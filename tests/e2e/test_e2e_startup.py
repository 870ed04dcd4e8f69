"""From the command to the first answer: nothing is promised too early, and what cannot work is said in one line."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e_http import CHAT, COMP, Exchange, chat, comp, post, strict_json
from e2e_models import CONFIG
from e2e_process import START_SECONDS, ServerProcess, octavo_command, processes_with, wait_until
from safetensors.numpy import save_file

Start = Callable[..., ServerProcess]


def test_it_is_ready_when_a_completion_works_and_not_before(start: Start) -> None:
    server = start("--max-model-len", "512")
    wait_until(lambda: server.status("/health/live") == 200, START_SECONDS, "the port answers")
    seen = []
    while True:
        answers = [server.http.get(path) for path in ("/health", "/health/ready", "/v1/models")]
        answers.append(server.http.post(COMP, json=comp(max_tokens=1)))
        assert server.status("/health/live") == 200
        seen.append([answer.status_code for answer in answers])
        # Ready may come between two of the questions, in their order, but never be taken back.
        assert seen[-1] == sorted(seen[-1], reverse=True)
        assert set(seen[-1]) <= {200, 503}
        for answer in answers:
            if answer.status_code == 503:
                assert set(strict_json(answer.content)) == {"error"}
                assert "retry-after" in answer.headers
        if seen[-1] == [200] * 4:
            break
        assert server.process.poll() is None
    assert seen[0] == [503] * 4  # the port is there long before the model

    # The last thing it says is that it works, and a line to paste.
    wait_until(lambda: "curl " in server.log, 5, "the curl line")
    *_, ready, curl = server.log.splitlines()
    assert ready == f"octavo is ready: {server.base_url}"
    if shutil.which("curl"):
        pasted = subprocess.run(curl, shell=True, capture_output=True, timeout=60, check=True)
        assert strict_json(pasted.stdout)["object"] == "chat.completion"
    server.check_healthy()


# ---- what cannot work


def changed_config(tiny_model: Path, folder: Path, **fields: Any) -> Path:
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


def checkpoint(tiny_model: Path, folder: Path) -> Path:
    """The tiny model with a weight file that holds one of its tensors."""
    shutil.copytree(tiny_model, folder)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    save_file(
        {"model.embed_tokens.weight": np.zeros((vocab_size, CONFIG["hidden_size"]), np.float32)},
        folder / "model.safetensors",
    )
    return folder


def without(tiny_model: Path, folder: Path, name: str) -> Path:
    shutil.copytree(tiny_model, folder)
    (folder / name).unlink()
    return folder


@pytest.fixture
def failures(tiny_model: Path, tmp_path: Path) -> dict[str, tuple[list[str], list[str]]]:
    """By name: arguments of ``octavo serve``, and what its one line must say."""
    model = str(tiny_model)
    dummy = ["--load-format", "dummy"]
    cut = checkpoint(tiny_model, tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    other = changed_config(tiny_model, tmp_path / "other", architectures=["MambaForCausalLM"])
    no_config = without(tiny_model, tmp_path / "no-config", "config.json")
    no_tokenizer = without(tiny_model, tmp_path / "no-tokenizer", "tokenizer.json")
    broken_template = tmp_path / "broken.jinja"
    broken_template.write_text("{% for x in %}")
    return {
        "no such path": (["/no/such/model"], ["/no/such/model"]),
        "no config": ([str(no_config)], ["config.json"]),
        "no tokenizer": ([str(no_tokenizer)], ["tokenizer.json"]),
        "cut weights": ([str(cut)], ["model.safetensors"]),
        "missing tensor": ([str(checkpoint(tiny_model, tmp_path / "one"))], ["model.layers.0"]),
        "architecture": ([str(other), *dummy], ["MambaForCausalLM", "LlamaForCausalLM"]),
        "context": ([model, *dummy, "--max-model-len", "1m"], ["--max-model-len", "1000000", "262144"]),
        "pool": ([model, *dummy, "--num-kv-blocks", "1t"], ["--num-kv-blocks"]),
        "policy": ([model, *dummy, "--scheduling-policy", "nope"], ["nope", "fcfs"]),
        "broken template": ([model, *dummy, "--chat-template", str(broken_template)], [str(broken_template)]),
        "flag": ([model, "--no-such-flag"], ["--no-such-flag"]),
    }


def test_what_cannot_work_is_one_line_and_status_2(failures: dict[str, Any], tmp_path: Path) -> None:
    """All at once; each within the time that loading takes, with its children gone."""
    sockets = tmp_path / "tmp"
    sockets.mkdir()
    running = {}
    for name, (arguments, _) in failures.items():
        running[name] = subprocess.Popen(
            [*octavo_command(), "serve", *arguments, "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(sockets), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    wrong = []
    for name, process in running.items():
        try:
            _, errors = process.communicate(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
        logged = ("starting", "model loaded", "no native kernels")
        lines = [line for line in errors.splitlines() if not any(text in line for text in logged)]
        if process.returncode != 2 or len(lines) != 1 or not all(part in errors for part in failures[name][1]):
            wrong.append(f"{name}: {process.returncode}\n{errors}")
    assert not wrong, "\n".join(wrong)
    assert not processes_with(sockets)
    assert list(sockets.iterdir()) == []


def test_a_port_in_use(tiny_model: Path) -> None:
    """Found before anything is loaded: at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [*octavo_command(), "serve", str(tiny_model), "--load-format", "dummy", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert f"--port {port}" in done.stderr
    assert "in use" in done.stderr


# ---- the server that ``configured`` describes


def test_names_and_defaults(configured: ServerProcess) -> None:
    names = [card["id"] for card in strict_json(configured.http.get("/v1/models").content)["data"]]
    assert names == ["tiny", "other"]
    post(configured, COMP, comp(max_tokens=1, model="other"))
    greedy = post(configured, COMP, comp(max_tokens=20, ignore_eos=True))["choices"]
    asked = {"model": "tiny", "prompt": "The lighthouse keeper", "max_tokens": 20, "ignore_eos": True, "seed": 1}
    assert post(configured, COMP, asked)["choices"] == greedy  # the model's own top_k
    assert post(configured, COMP, {**asked, "top_k": None, "temperature": None})["choices"] == greedy
    assert post(configured, COMP, {**asked, "top_k": -1, "temperature": 1})["choices"] != greedy


def test_slow_readers(configured: ServerProcess) -> None:
    """The engine does not wait for them, nor does anybody else; what was not taken comes later, in fewer pieces."""
    num_tokens, num_choices = 60, 8
    computed = configured.settled_metrics()["generation_tokens_total"]
    key = {"Authorization": "Bearer the-key"}
    fields = {"logprobs": True, "top_logprobs": 20, "max_tokens": num_tokens, "ignore_eos": True, "n": num_choices}
    slow = [Exchange(configured, CHAT, chat("slow", stream=True, **fields), headers=key) for _ in range(2)]
    for exchange in slow:
        exchange.read_head()
    post(configured, COMP, comp(max_tokens=5, ignore_eos=True))
    ended = "request_success_total{finished_reason=length}"
    before = configured.metric("time_to_first_token_seconds_count")

    def is_computed() -> bool:
        values = configured.metrics()
        return values["num_requests_running"] == 0 and values["generation_tokens_total"] >= computed + 965

    wait_until(is_computed, 60, "the engine has computed what nobody reads")
    assert configured.metric(ended) < before  # the gateway still has the slow ones
    for exchange in slow:
        exchange.ended_well()
        assert len(exchange.chunks) < num_choices * num_tokens
        for index in range(num_choices):
            entries = [part["logprobs"]["content"] for part in exchange.choice(index) if part["logprobs"]]
            assert sum(map(len, entries)) == num_tokens
        exchange.close()


def test_keys(configured: ServerProcess) -> None:
    """Without the key nothing but the health probes and the page answers, whatever the path looks like."""
    wrong_keys = [None, "", "Bearer", "Bearer wrong", "Bearer the-key x", "Basic the-key", "the-key"]
    paths = ["/v1/models", "/metrics", "/version", "/v1/models/tiny", "//v1/models", "/health/../metrics"]
    for path in [*paths, "/docs", "/v1/./models", "/health/", "/HEALTH", CHAT, COMP, "/tokenize", "/detokenize"]:
        for wrong in wrong_keys:
            headers = {"Authorization": ""} if wrong is None else {"Authorization": wrong}
            for method in ("GET", "POST", "HEAD"):
                answer = configured.http.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path, wrong)
    for path in ("/health", "/health/live", "/health/ready", "/"):
        assert configured.http.get(path, headers={"Authorization": ""}).status_code == 200
    assert configured.http.options(CHAT, headers={"Authorization": ""}).status_code < 300

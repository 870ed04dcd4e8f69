"""The example of a policy from another package: installed as anybody would, found by its entry point."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "newest_first"
CODE = """
from engine_core import registry
from engine_core.request_builder import AddReader
from engine_core.scheduler.policy import Policy
from ipc.codec import pack_ids
from ipc.messages import Add
from ipc.params import SamplingParams

assert "newest_first" in registry.names("policy")
policy: Policy = registry.load("policy", "newest-first")()
read = AddReader(100, lambda hashes, token_ids, extra: None)
for request_id, second in enumerate([1, 2, 3, 12]):
    add = Add(request_id, second * 1_000_000_000, "", pack_ids([5]), SamplingParams())
    policy.add(read(b"", add).sequences[0])
print([policy.pop().request.request_id for _ in range(4)])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package. The sources are copied, so that building leaves nothing in the tree."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for path in EXAMPLE.rglob("*"):
        if path.suffix in (".py", ".toml", ".md"):
            copy = source / path.relative_to(EXAMPLE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True, capture_output=True, timeout=100)
    return target


def test_the_policy_is_found_by_name_and_orders_the_queue(installed: Path) -> None:
    root = str(EXAMPLE.parents[1])
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(installed)!r}, {root!r}]\n{CODE}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[2, 1, 0, 3]"

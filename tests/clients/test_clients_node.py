"""npm's openai on Node: the cases of ``node/client.mjs``, each in a process of its own."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from clients_cases import API_KEY

SCRIPT = Path(__file__).parent / "node" / "client.mjs"
CASES = re.findall(r"^  async (\w+)\(\)", SCRIPT.read_text(), re.MULTILINE)


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, base_url: str) -> None:
    environment = {**os.environ, "BASE_URL": base_url, "API_KEY": API_KEY}
    found = subprocess.run(
        ["node", SCRIPT, case],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert found.returncode == 0, found.stdout

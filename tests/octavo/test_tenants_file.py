import hashlib
from pathlib import Path

import pytest

from ipc.config import TenantConfig
from ipc.errors import ConfigError
from octavo.cli import run
from octavo.options import build_serve_config
from octavo.tenants_file import SHORTEST_KEY, key_hash, new_key, read_tenants

A, B = "a" * 64, "b" * 64


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "tenants.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_tenants_in_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""
        [team-a]
        keys = ["{A}"]
        weight = 2
        tokens_per_minute = 60000
        concurrent_requests = 8
        priority_cap = -1
        scopes = ["inference", "metrics"]
        [ops]
        keys = ["{B}"]
        scopes = ["admin"]
        """,
    )
    expected = (
        TenantConfig(
            name="team-a",
            keys=(A,),
            weight=2.0,
            tokens_per_minute=60000,
            concurrent_requests=8,
            priority_cap=-1,
            scopes=("inference", "metrics"),
        ),
        TenantConfig(name="ops", keys=(B,), scopes=("admin",)),
    )
    assert read_tenants(path) == expected
    assert build_serve_config("smollm2", {"api_keys_file": path}).tenants == expected
    assert build_serve_config("smollm2", {}).tenants == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ["holds no tenant"]),
        ("[a]\nkeys = ]", ["line 2"]),
        ("[a]\n[a]\n", ["line 2"]),
        (b"\xff\xfe", ["UTF-8"]),
        ("a = 1", ["[a]", "table"]),
        ("[a]\n", ["[a]", "keys"]),
        ("[a]\nkeys = []", ["[a]", "keys"]),
        ('[a]\nkeys = ["sk-secret"]', ["[a]", "keys", "SHA-256"]),
        (f'[a]\nkeys = ["{A}"]\nwheight = 2', ["[a]", "wheight"]),
        (f'[a]\nkeys = ["{A}"]\nweight = 0', ["[a]", "weight"]),
        (f'[a]\nkeys = ["{A}"]\nweight = "2"', ["[a]", "weight"]),
        (f'[a]\nkeys = ["{A}"]\ntokens_per_minute = 0', ["[a]", "tokens_per_minute"]),
        (f'[a]\nkeys = ["{A}"]\nconcurrent_requests = 1.5', ["[a]", "concurrent_requests"]),
        (f'[a]\nkeys = ["{A}"]\nscopes = ["root"]', ["[a]", "scopes"]),
        (f'[a]\nkeys = ["{A}"]\nname = "b"', ["[a]", "name"]),
        (f'["a b"]\nkeys = ["{A}"]', ["[a b]", "name"]),
        (f'[default]\nkeys = ["{A}"]', ["[default]"]),
        (f'[a]\nkeys = ["{A}"]\n[b]\nkeys = ["{B}", "{A}"]', ["[b]", "keys", "[a]"]),
    ],
)
def test_errors_name_flag_file_entry_and_field(tmp_path: Path, text: str | bytes, says: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        build_serve_config("smollm2", {"api_keys_file": path})
    message = str(caught.value)
    assert message.startswith(f"--api-keys-file: {path}: ")
    assert "\n" not in message
    for expected in says:
        assert expected in message.removeprefix(f"--api-keys-file: {path}: ")
    assert "secret" not in message


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path, "a\0b"):
        with pytest.raises(ConfigError, match="--api-keys-file: .*cannot be read"):
            read_tenants(str(path))


def test_keys_and_hashes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["keys", "new"]) == 0
    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    key, shown = lines["key"].strip(), lines["hash"].strip()
    assert shown == hashlib.sha256(key.encode()).hexdigest() == key_hash(key)
    assert len({new_key() for _ in range(100)}) == 100

    source = tmp_path / "key"
    source.write_text(key + "\n")
    with source.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run(["keys", "hash"]) == 0
    assert capsys.readouterr().out.strip() == shown


@pytest.mark.parametrize("key", ["", "short", "x" * (SHORTEST_KEY - 1), "with a space in it, long", "clé" * 20])
def test_keys_that_could_be_guessed_or_never_be_sent(key: str) -> None:
    with pytest.raises(ConfigError, match="octavo keys new"):
        key_hash(key)

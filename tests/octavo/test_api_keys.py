from pathlib import Path

import pytest

from ipc.errors import ConfigError
from octavo.api_keys import read_api_keys
from octavo.options import build_serve_config


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "keys.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_one_key_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "# of the team\n\n  first-key \r\nsecond#key\n\t\n#third\nfourth")
    assert read_api_keys(path) == ("first-key", "second#key", "fourth")


def test_keys_of_both_flags_count(tmp_path: Path) -> None:
    path = write(tmp_path, "b\nc\n")
    config = build_serve_config("smollm2", {"api_key": ("a",), "api_key_file": path})
    assert config.gateway.api_key == ("a", "b", "c")
    assert build_serve_config("smollm2", {"api_key_file": path}).gateway.api_key == ("b", "c")
    assert build_serve_config("smollm2", {"api_key": ("a",)}).gateway.api_key == ("a",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key"),
        ("\n# only a comment\n", "no key"),
        ("good\nwith a space\n", "line 2"),
        ("good\n\nclé\n", "line 3"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_unusable_files(tmp_path: Path, text: str | bytes, why: str) -> None:
    """The flag, the file and the line, but no key."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=why) as caught:
        build_serve_config("smollm2", {"api_key_file": path})
    assert "--api-key-file" in str(caught.value)
    assert path in str(caught.value)
    message = str(caught.value).replace(path, "")
    assert not any(key in message for key in ("good", "with a", "clé"))


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path, "a\0b"):
        with pytest.raises(ConfigError, match="--api-key-file") as caught:
            build_serve_config("smollm2", {"api_key_file": str(path)})
        assert str(path) in str(caught.value)

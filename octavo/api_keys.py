"""``--api-key-file``: keys from a file, so that none is on a command line."""

from pathlib import Path

from ipc.errors import ConfigError

FLAG = "--api-key-file"


def is_api_key(text: str) -> bool:
    """A header value carries visible ASCII only; another key could never be sent."""
    return bool(text) and all("!" <= letter <= "~" for letter in text)


def read_api_keys(path: str) -> tuple[str, ...]:
    """One key a line; blank lines and lines that begin with # are none. Raises ConfigError naming flag and file.

    Keys stay out of messages.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{FLAG}: {path}: is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{FLAG}: {path}: cannot be read ({reason})") from error
    keys = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if not is_api_key(line):
            raise ConfigError(f"{FLAG}: {path}: line {number}: a key must be visible ASCII characters without spaces")
        keys.append(line)
    if not keys:
        raise ConfigError(f"{FLAG}: {path}: holds no key")
    return tuple(keys)

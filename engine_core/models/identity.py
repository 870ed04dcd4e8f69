"""Facts that identify a model folder: a digest of its contents, and how many token ids its tokenizer has."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine_core.models.checkpoint import weight_files
from engine_core.models.config_fields import ConfigFields
from ipc.errors import ConfigError

_PAGE_WORDS = 512  # 4 KiB in 64-bit words
_PAGES_AT_A_TIME = 256  # 1 MiB: stays in the cache between load and sum
_MULTIPLIER = 6364136223846793005  # odd, hence invertible modulo 2⁶⁴ (Knuth's MMIX generator)


class _AddedToken(msgspec.Struct):
    id: int


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, int] | list[Any]  # a list where the index is the id (Unigram)


class _TokenizerFile(msgspec.Struct):
    model: _TokenizerModel
    added_tokens: list[_AddedToken] = []


def num_token_ids(folder: Path) -> int:
    """One more than the highest id that has a token and a row in the embedding; all rows without tokenizer.json.

    Raises ConfigError if tokenizer.json or config.json cannot be read.
    """
    vocab_size = ConfigFields.read(folder / "config.json").integer("vocab_size")
    file = folder / "tokenizer.json"
    if not file.exists():
        return vocab_size
    try:
        tokenizer = msgspec.json.decode(file.read_bytes(), type=_TokenizerFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    vocab = tokenizer.model.vocab
    size = len(vocab) if isinstance(vocab, list) else max(vocab.values(), default=-1) + 1
    size = max([size, *(token.id + 1 for token in tokenizer.added_tokens)])
    if size < 1:
        raise ConfigError(f"{file}: model.vocab is empty")
    return min(size, vocab_size)


def model_digest(folder: Path) -> bytes:
    """SHA-256 over config.json and the contents of the weight files that exist; 270 MB take about 50 ms.

    Copies of a folder have the same digest, whatever their names and times. Weights enter as one 64-bit checksum
    for each 4 KiB, so that any accidental change is seen; it is no defence against a forger.
    Raises ConfigError if config.json or the index cannot be read.
    """
    try:
        digest = sha256((folder / "config.json").read_bytes())
    except OSError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error.strerror}") from error
    for file in weight_files(folder):
        if file.exists():
            digest.update(f"\n{file.name} {file.stat().st_size}\n".encode())
            digest.update(_page_checksums(file))
    return digest.digest()


def _page_checksums(file: Path) -> bytes:
    """For each 4 KiB page, its words times powers of an odd number, summed modulo 2⁶⁴; then the bytes left over."""
    data = np.memmap(file, dtype=np.uint8, mode="r") if file.stat().st_size else np.zeros(0, np.uint8)
    weights = np.cumprod(np.full(_PAGE_WORDS, _MULTIPLIER, dtype=np.uint64))
    num_whole = data.size // (8 * _PAGE_WORDS) * (8 * _PAGE_WORDS)
    pages = data[:num_whole].view("<u8").reshape(-1, _PAGE_WORDS)
    sums = np.empty(len(pages), dtype="<u8")
    for start in range(0, len(pages), _PAGES_AT_A_TIME):
        part = slice(start, start + _PAGES_AT_A_TIME)
        np.einsum("pw,w->p", pages[part], weights, out=sums[part])
    return sums.tobytes() + data[num_whole:].tobytes()

"""Bad words as the id sequences that the engine bans.

Free text does not cross the wire (design 2); the limits keep the engine's tables small.
"""

from collections.abc import Sequence

from gateway.text.tokenizer import Tokenizer
from ipc.errors import RequestError

MAX_NUM_WORDS = 128
MAX_NUM_TOKENS = 1024


def encode_bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The ids of each word as it is at the beginning of a text and after a space, without duplicates.

    Other spellings (capitals, other splits into tokens) are not covered. Special tokens are recognized. Raises
    RequestError naming bad_words for a word without tokens and beyond the limits.
    """
    if len(words) > MAX_NUM_WORDS:
        raise RequestError(f"bad_words may hold at most {MAX_NUM_WORDS} words, not {len(words)}.", param="bad_words")
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        bare = word.lstrip() or word  # white space alone is a word too
        if tokenizer.min_tokens(bare) > MAX_NUM_TOKENS:
            raise RequestError(f"bad_words[{index}] is too long.", param="bad_words")
        token_ids = tokenizer.encode(bare, add_special_tokens=False, param="bad_words")
        if not bare or not token_ids:
            raise RequestError(f"bad_words[{index}] has no tokens, so it cannot be banned.", param="bad_words")
        sequences[tuple(token_ids)] = None
        sequences[tuple(tokenizer.encode(f" {bare}", add_special_tokens=False, param="bad_words"))] = None
    num_tokens = sum(map(len, sequences))
    if num_tokens > MAX_NUM_TOKENS:
        raise RequestError(
            f"bad_words may take at most {MAX_NUM_TOKENS} tokens together, not {num_tokens}.", param="bad_words"
        )
    return tuple(sequences)

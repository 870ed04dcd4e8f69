from pathlib import Path

import pytest
import text_models

from gateway.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder of every kind of tokenizer."""
    root = tmp_path_factory.mktemp("models")
    special_tokens = {
        "byte_level": {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "special": True}},
        "sentencepiece": {"bos_token": "<s>", "eos_token": "</s>"},
    }
    return {
        kind: text_models.write_folder(root / kind, build(), text_models.CHATML, **special_tokens.get(kind, {}))
        for kind, build in text_models.KINDS.items()
    }


@pytest.fixture(scope="session")
def all_tokenizers(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: Tokenizer.load(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="session")
def byte_level(all_tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return all_tokenizers["byte_level"]


@pytest.fixture(scope="session")
def sentencepiece(all_tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return all_tokenizers["sentencepiece"]

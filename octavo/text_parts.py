"""What the text side of a model is made of, loaded from its folder: for the server and the offline class."""

from dataclasses import dataclass
from pathlib import Path

from gateway.text.chat_template import ChatTemplate
from gateway.text.generation_config import GenerationConfig, load_generation_config
from gateway.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextParts:
    """A model's tokenizer, chat template and defaults."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    defaults: GenerationConfig

    @classmethod
    def load(cls, folder: Path, *, template_file: str | None, with_defaults: bool) -> "TextParts":
        """Raises ConfigError naming the file that is missing or broken."""
        tokenizer = Tokenizer.load(folder)
        template = ChatTemplate.load(folder, tokenizer, template_file=Path(template_file) if template_file else None)
        return cls(tokenizer, template, load_generation_config(folder, tokenizer, with_defaults=with_defaults))

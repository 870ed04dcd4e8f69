"""The registry entry of a family of models, and the search for the one that serves a checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engine_core import registry
from engine_core.layers.loading import LayerLoader
from engine_core.models.config import ArchitectureConfig, FamilyTraits
from engine_core.models.config_fields import ConfigFields
from engine_core.models.decoder import DecoderModel


@dataclass(frozen=True, slots=True)
class Architecture:
    """``class_names``: the values of config.json's ``architectures`` that it serves.

    ``read_traits`` raises ConfigError for a config that the family cannot serve; ``build`` takes the model's
    config, where its weights come from, and max_model_len in tokens.
    """

    class_names: tuple[str, ...]
    read_traits: Callable[[ConfigFields], FamilyTraits]
    build: Callable[[ArchitectureConfig, LayerLoader, int], DecoderModel]


def find_architecture(class_names: Sequence[str]) -> tuple[str, Architecture] | None:
    """The first of ``class_names`` that is served, and by what; families are imported only until it is found."""
    for architecture in _architectures():
        for name in class_names:
            if name in architecture.class_names:
                return name, architecture
    return None


def supported_class_names() -> list[str]:
    """Every class name that some architecture serves."""
    return [name for architecture in _architectures() for name in architecture.class_names]


def _architectures() -> Iterator[Architecture]:
    for name in registry.names("architecture"):
        architecture: Architecture = registry.load("architecture", name)
        yield architecture

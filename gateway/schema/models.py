"""/v1/models."""

import msgspec


class ModelCard(msgspec.Struct, kw_only=True):
    """One name that requests may use as ``model``. ``root`` is the name it is an alias of."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"

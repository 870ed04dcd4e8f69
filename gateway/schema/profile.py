"""POST /admin/profile/start and /stop: bodies and answers."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ipc.messages import MOST_PROFILED_STEPS


class StartRequest(msgspec.Struct, forbid_unknown_fields=True):
    """``num_steps``: after which the profile ends by itself; as many as there may be unless said."""

    num_steps: Annotated[int, Meta(ge=1, le=MOST_PROFILED_STEPS)] | None = None


class StopRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing is to be said."""


class ProfileStatus(msgspec.Struct):
    """``files``: on the engine's machine. ``num_steps``: of a profile that has begun the most, else those in it."""

    status: str
    files: list[str]
    num_steps: int
    max_seconds: float | UnsetType = UNSET
    seconds: float | UnsetType = UNSET


start_decoder = msgspec.json.Decoder(StartRequest)
stop_decoder = msgspec.json.Decoder(StopRequest)

"""The wire between a gateway process and the server's own process, which has the desk and the engine.

To the gateway that process looks like an engine that never dies: ``ipc.messages``, and beside them these. Numbers pair
questions with answers.
"""

import msgspec

from ipc.messages import Profile, ToEngine, ToGateway

MetricValues = tuple[tuple[str, tuple[str, ...], tuple[float, ...]], ...]
"""(instrument, label values, numbers) of ``observability.families``."""

Headers = tuple[tuple[bytes, bytes], ...]


# ---- gateway to desk


class Check(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=40):
    """May a request with so long a body be let in at all? Answered by ``Answer`` or ``TurnedAway``."""

    number: int
    tenant: str
    num_bytes: int


class Enter(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=41):
    """A request that asks for so much (``gateway.admission.Demand``). Answered by ``Entered`` or ``TurnedAway``."""

    number: int
    tenant: str
    num_bytes: int
    num_prompts: int
    num_choices: int
    max_tokens: float
    ends_by_itself: bool
    num_prompt_tokens: int | None
    deadline: float  # seconds from now


class Leave(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=42):
    """The visit of that number is over."""

    visit: int


class Question(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=43):
    """``about``: metrics, usage, requests, drain or profile. Answered by ``Answer``."""

    number: int
    about: str
    message: Profile | None = None  # about profile: what the engine is told; the answer is its ``Profiled``


class Report(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=44):
    """A sign of life, and what the gateway has counted since it began. ``number``: of the ``Collect`` that it answers,
    else 0."""

    number: int
    values: MetricValues


class Serving(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=45):
    """The model's text is loaded: requests can be served as soon as there is an engine."""


class Unusable(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=46):
    """The model's text cannot be loaded."""

    message: str


# ---- desk to gateway


class Entered(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=50):
    """Let in, as the visit of that number."""

    number: int
    visit: int
    rate_limits: Headers


class TurnedAway(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=51):
    """Not now. ``retry_after``: seconds; 0: there is no engine (503)."""

    number: int
    message: str
    retry_after: float
    rate_limits: Headers = ()


class Answer(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=52):
    """What was asked for."""

    number: int
    body: bytes = b""


class Collect(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=53):
    """Send a ``Report`` now."""

    number: int


class Phase(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=54):
    """What the server is doing until it serves, for people."""

    text: str


class Load(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=55):
    """The model's folder is there."""

    folder: str


class Outage(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=58):
    """There has been no engine for a while, and why; empty: there is one again."""

    reason: str


class Close(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=56):
    """Take no new requests."""


class Stop(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=57):
    """End: what is complete is still sent."""


FromDesk = Entered | TurnedAway | Answer | Collect | Phase | Load | Outage | Close | Stop
ToDesk = ToEngine | Check | Enter | Leave | Question | Report | Serving | Unusable
ToGatewayProcess = ToGateway | FromDesk

"""The error tree.

OctavoError
├── ConfigError         a flag, file or model that cannot work; the process ends with status 2
├── RequestError        the client's fault: a 4xx that names the field
├── CapacityError       refused for now: 429 and Retry-After
└── EngineError         the engine failed, or is not there
"""


class OctavoError(Exception):
    """Everything that octavo raises on purpose. The message is one line that a user can act on."""


class ConfigError(OctavoError):
    """A senseless flag, an unusable model folder, a missing file."""


class RequestError(OctavoError):
    """A request that cannot be served as it stands.

    ``param`` names the field, ``code`` is OpenAI's error code where it has one, ``status`` the HTTP status.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


class CapacityError(OctavoError):
    """Refused for now; ``retry_after`` in seconds. ``rate_limits``: response headers that tell of the client's own
    limits."""

    def __init__(self, message: str, *, retry_after: float, rate_limits: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.message, self.retry_after, self.rate_limits = message, retry_after, rate_limits


class EngineError(OctavoError):
    """The engine failed this request (``code`` says how) or is not able to serve."""

    def __init__(self, message: str, *, code: str = "engine_error", status: int = 500) -> None:
        super().__init__(message)
        self.message, self.code, self.status = message, code, status

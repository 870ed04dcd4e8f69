"""Names of single requests: which ones a client may choose, in a header or in the body, and ours."""

import re
import secrets

_ALLOWED = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def is_request_id(text: str) -> bool:
    """Whether a client may call its request so: what is safe in a header, in logs and in an id."""
    return _ALLOWED.fullmatch(text) is not None


def new_request_id() -> str:
    """For a client that chose none."""
    return f"req-{secrets.token_hex(12)}"

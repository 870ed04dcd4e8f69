"""Request bodies: JSON bytes to a struct, once, with errors that name the field.

msgspec does the work: it refuses NaN, infinities and lone surrogates, which the standard library lets in.
"""

import re
from typing import TypeVar

import msgspec

from ipc.errors import RequestError

T = TypeVar("T")

_AT_PATH = re.compile(r"(.*?)(?: - at `(?:key` in `)?(?:key in `)?\$\.?(.*?)`)?$", re.DOTALL)
_FIELD_IN_MESSAGE = re.compile(r"(?:unknown|required) field `(.*?)`", re.DOTALL)
_STOPPED_AT = re.compile(r"\(byte (\d+)\)$")
_KEY = re.compile(rb'"([a-z_]{1,64})"\s*:')
_LAST_INDEX = re.compile(r"(\[[^\]]*\])+$")


def decode_request(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The request that ``body`` holds.

    Raises ``RequestError`` (400): malformed JSON without ``param``, a wrong, unknown or missing field with the
    path of that field. An element of a list is reported under the list's own name.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if field := _field_with_constant(decoder, body, str(error)):
            raise RequestError(f"{field} holds NaN or an infinity, which JSON does not have", param=field) from error
        raise RequestError(
            f"the request body is not valid JSON (it may be cut off or hold a lone surrogate): {error}"
        ) from error
    except RecursionError as error:
        raise RequestError("the request body is nested too deeply") from error


def _field_with_constant(decoder: msgspec.json.Decoder[T], body: bytes, message: str) -> str | None:
    """The field in which the decoder stopped at NaN or Infinity, as many clients send them."""
    stopped = _STOPPED_AT.search(message)
    if stopped is None or not body[int(stopped[1]) :].startswith((b"NaN", b"Infinity")):
        return None
    fields: tuple[str, ...] = getattr(decoder.type, "__struct_fields__", ())
    keys = [key.decode() for key in _KEY.findall(body[: int(stopped[1])])]
    return next((key for key in reversed(keys) if key in fields), None)


def _invalid(text: str) -> RequestError:
    matched = _AT_PATH.fullmatch(text)
    message, path = (matched[1], matched[2] or "") if matched else (text, "")
    named = _FIELD_IN_MESSAGE.search(message)
    path = ".".join(filter(None, (path, named[1]))) if named else _LAST_INDEX.sub("", path)
    param = path[:200] or None
    where = f"{param}: " if param and not named else ""
    return RequestError(f"{where}{message[:1].lower()}{message[1:]}", param=param)

"""Server-sent events: chunks whose constant parts are made once, and the exchange that they are part of."""

import logging

import msgspec
from starlette.types import Receive, Send

from gateway.disconnect import ClientDisconnected, cancel_on_disconnect
from gateway.event_pump import EventEncoder, EventPump
from gateway.generation_group import GenerationGroup
from gateway.responses import encode_headers
from gateway.schema.common import Usage
from gateway.schema.errors import HttpError, from_exception, http_error
from ipc.errors import OctavoError

logger = logging.getLogger("octavo.gateway")

DONE = b"data: [DONE]\n\n"

_HEADERS = encode_headers(
    {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",  # nginx would hold the tokens back
    }
)
_encoder = msgspec.json.Encoder()


class ChunkEncoder:
    """Chunks of one response: ``data: {envelope, choices: [...], usage}``.

    ``usage`` is absent unless asked for, then null, or the usage so far in each chunk.
    """

    def __init__(self, envelope: dict[str, str | int], *, has_usage: bool) -> None:
        self._envelope = b"data: " + _encoder.encode(envelope)[:-1]
        self._head = self._envelope + b',"choices":['
        self._tail = b'}],"usage":null}\n\n' if has_usage else b"}]}\n\n"
        self._choice_heads: dict[int, bytes] = {}

    def chunk(self, index: int, fields: bytes, usage: Usage | None = None, members: bytes = b"") -> bytes:
        """The event for one choice; ``fields`` is what follows its index, as JSON members; ``members``: more of the
        event itself."""
        head = self._choice_heads.get(index)
        if head is None:
            head = self._choice_heads[index] = self._head + b'{"index":%d,' % index
        if members:
            head = b'%b,%b,"choices":[{"index":%d,' % (self._envelope, members, index)
        if usage is not None:
            return b'%b%b}],"usage":%b}\n\n' % (head, fields, _encoder.encode(usage))
        return head + fields + self._tail

    def usage_chunk(self, usage: Usage) -> bytes:
        """The last chunk of ``include_usage``: no choices."""
        return b'%b],"usage":%b}\n\n' % (self._head, _encoder.encode(usage))


def error_event(error: HttpError) -> bytes:
    """The event that ends a stream which failed after its headers. No ``[DONE]`` follows it."""
    return b"data: " + error.body() + b"\n\n"


async def send_stream(
    receive: Receive, send: Send, group: GenerationGroup, events: EventEncoder, *, keep_alive: float
) -> None:
    """The whole exchange of a streamed response: headers once the engine has accepted (with a deadline: once there is
    something to show, or for ``keep_alive`` nothing), then the events, then
    ``[DONE]``, or the one error event. The engine is let go before the last event is sent. ``keep_alive``: seconds of
    silence after which a comment is sent; 0: none is.

    Raises what went wrong before the headers, so that such an answer is the same as without ``stream``.
    """
    is_started = False
    last = DONE
    try:
        async with cancel_on_disconnect(receive), group:
            await group.accepted()
            if group.has_deadline:  # then the status may tell that it was missed
                await group.begun(keep_alive or None)
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            is_started = True
            await EventPump(send, group, events, keep_alive).run()
    except ClientDisconnected:
        raise
    except OctavoError as error:
        if not is_started:
            raise
        last = error_event(from_exception(error))
    except Exception:
        if not is_started:
            raise
        logger.exception("a stream failed unexpectedly")
        last = error_event(http_error(500, "internal error", code="internal_error"))
    await send({"type": "http.response.body", "body": last, "more_body": False})

"""One streamed chat answer over HTTP, with the time of every chunk. Never raises for what a server does: it is noted.

Blocking calls of the standard library. In a process of locust they let other users run.
"""

import http.client
import json
import socket
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from math import inf, nan
from typing import Any

from loadtest.mix.connections import Connections
from loadtest.mix.record import Outcome, Record, now

LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class Patience:
    """When the user hangs up: after so many seconds, or so many chunks of output."""

    seconds: float = inf
    chunks: float = inf


@dataclass(slots=True)
class _Stream:
    """What was read so far."""

    record: Record
    texts: list[str]
    last: dict[int, float] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    error: str = ""
    is_done: bool = False


class HungUp(Exception):
    """The user has lost patience."""


def ask(
    connections: Connections,
    body: dict[str, Any],
    record: Record,
    api_key: str | None,
    timeout: float,
    patience: Patience,
) -> list[str]:
    """POST to ``/chat/completions``; the text of every choice. ``record`` then says how it ended.

    Seconds count from ``record.due``; ``timeout`` limits the whole answer.
    """
    stream = _Stream(record, [""] * record.num_choices)
    record.sent = now()
    try:
        _exchange(connections, json.dumps(body).encode(), api_key, stream, timeout, patience)
    except HungUp:
        record.outcome = Outcome.HUNG_UP
    except TimeoutError:
        record.outcome, record.message = Outcome.FAILED, f"no end within {timeout:g} s"
    except (OSError, http.client.HTTPException, ValueError) as error:
        record.outcome, record.message = Outcome.FAILED, f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
    finally:
        record.ended = now()
    return stream.texts


def _exchange(
    connections: Connections,
    data: bytes,
    api_key: str | None,
    stream: _Stream,
    timeout: float,
    patience: Patience,
) -> None:
    record = stream.record
    limits = _Limits(record.sent + timeout, record.due + patience.seconds)
    connection, response, sock = _send(connections, data, api_key, limits)
    is_whole = False
    try:
        record.status = response.status
        if response.status != 200:
            _note_refusal(record, response, limits.read_all(response, sock))
        elif "text/event-stream" not in (kind := response.getheader("Content-Type", "")):
            limits.read_all(response, sock)
            record.outcome, record.message = Outcome.FAILED, f"the answer is no event stream but {kind!r}"
        else:
            _read_stream(response, sock, stream, limits, patience)
        is_whole = response.isclosed()
    finally:
        if is_whole:
            connections.give(connection)
        else:
            connection.close()


@dataclass(frozen=True, slots=True)
class _Limits:
    """When the client gives up, and when the user does; the earlier one ends every read."""

    deadline: float
    hang_up: float

    def apply(self, sock: socket.socket) -> None:
        """To the next read. Raises HungUp or TimeoutError when there is no time left."""
        moment = now()
        if (left := min(self.deadline, self.hang_up) - moment) <= 0:
            self.end(moment)
        sock.settimeout(left)

    def end(self, moment: float) -> None:
        """Raises what the one that has passed means."""
        if self.hang_up <= self.deadline:
            raise HungUp
        raise TimeoutError

    def read(self, response: http.client.HTTPResponse, sock: socket.socket) -> bytes:
        """What is there, at least a byte; nothing at the end."""
        self.apply(sock)
        try:
            return response.read1(65536)
        except TimeoutError:
            self.end(now())
            raise

    def read_all(self, response: http.client.HTTPResponse, sock: socket.socket) -> bytes:
        """To the end."""
        parts = []
        while part := self.read(response, sock):
            parts.append(part)
        return b"".join(parts)


def _send(
    connections: Connections, data: bytes, api_key: str | None, limits: _Limits
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, socket.socket]:
    """The head of the answer. A kept connection may have been closed by the server meanwhile: then once more."""
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    connection, is_reused = connections.take()
    while True:
        try:
            if connection.sock is None:
                connection.timeout = max(0.001, min(limits.deadline, limits.hang_up) - now())
                connection.connect()
            limits.apply(connection.sock)
            connection.request("POST", f"{connections.path}/chat/completions", data, headers)
            sock = connection.sock  # the connection forgets it when the answer says that it is the last
            return connection, connection.getresponse(), sock
        except (ConnectionResetError, BrokenPipeError):
            connection.close()
            if not is_reused:
                raise
            connection, is_reused = connections.new(), False
        except TimeoutError:
            connection.close()
            limits.end(now())
            raise
        except BaseException:
            connection.close()
            raise


def _note_refusal(record: Record, response: http.client.HTTPResponse, body: bytes) -> None:
    message = error_message(body)
    record.num_bytes = len(body)
    if response.status == 429:
        record.outcome, record.message = Outcome.REFUSED, message
        record.retry_after = retry_after_seconds(response)
    else:
        record.outcome, record.message = Outcome.FAILED, f"HTTP {response.status}: {message}"


def retry_after_seconds(response: http.client.HTTPResponse) -> float | None:
    """What the server says, in whichever of three ways; None if it says nothing that can be read."""
    if milliseconds := response.getheader("retry-after-ms"):
        try:
            return float(milliseconds) / 1000
        except ValueError:
            pass
    if not (told := response.getheader("Retry-After")):
        return None
    try:
        return max(0.0, float(told))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - now())
    except ValueError:
        return None


def error_message(body: bytes) -> str:
    """Of an error as OpenAI, vLLM or FastAPI write it; otherwise the text itself."""
    text = body.decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text[:LONGEST_MESSAGE] or "(no message)"
    while isinstance(value, dict):
        value = next((value[key] for key in ("error", "message", "detail") if key in value), text)
    return (value if isinstance(value, str) else text)[:LONGEST_MESSAGE]


def _read_stream(
    response: http.client.HTTPResponse, sock: socket.socket, stream: _Stream, limits: _Limits, patience: Patience
) -> None:
    record, rest = stream.record, b""
    while data := limits.read(response, sock):
        moment = now()
        record.num_bytes += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                _take_event(line[5:].strip(), moment, stream)
        if len(record.times) >= patience.chunks and not stream.is_done:
            raise HungUp
    if not stream.error and not stream.is_done and len(stream.finish) < record.num_choices:
        stream.error = "the stream ended early"
    record.outcome = Outcome.FAILED if stream.error else Outcome.ANSWERED
    record.message = stream.error or ",".join(sorted(set(stream.finish.values())))


def _take_event(data: bytes, moment: float, stream: _Stream) -> None:
    if data == b"[DONE]":
        stream.is_done = True
        return
    if not data:
        return
    event = json.loads(data)
    if "error" in event:
        stream.error = error_message(data)
        return
    if usage := event.get("usage"):
        _take_usage(usage, stream.record)
    for choice in event.get("choices") or ():
        index, delta = choice.get("index", 0), choice.get("delta") or {}
        if reason := choice.get("finish_reason"):
            stream.finish[index] = reason
        text = delta.get("content") or ""
        if text and index < len(stream.texts):
            stream.texts[index] += text
        if text or delta.get("reasoning") or delta.get("reasoning_content") or delta.get("tool_calls"):
            stream.record.times.append(moment)
            stream.record.gaps.append(moment - stream.last.get(index, nan))
            stream.last[index] = moment


def _take_usage(usage: dict[str, Any], record: Record) -> None:
    record.prompt_tokens = usage.get("prompt_tokens") or 0
    record.completion_tokens = usage.get("completion_tokens") or 0
    record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    record.is_counted = True


def first_model(connections: Connections, api_key: str | None, timeout: float) -> str:
    """What the server lists first. Raises ValueError or OSError, with a message, where it lists nothing."""
    connection = connections.new()
    connection.timeout = timeout
    try:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        connection.request("GET", f"{connections.path}/models", headers=headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise ValueError(f"{connections.path}/models: HTTP {response.status}: {error_message(body)}")
        listed = json.loads(body)
        models = listed.get("data") if isinstance(listed, dict) else None
        if not models:
            raise ValueError(f"{connections.path}/models lists no model")
        return str(models[0]["id"])
    except http.client.HTTPException as error:
        raise ValueError(f"{connections.path}/models: {type(error).__name__}: {error}") from error
    finally:
        connection.close()

"""A client of the OpenAI chat API on the standard library: one connection a request, answers as they come.

Knows HTTP and SSE (https://html.spec.whatwg.org/multipage/server-sent-events.html); not the terminal.
"""

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse

from octavo.server_address import ServerAddress, error_text, reason

_CONNECT_TIMEOUT = 10.0


class ChatError(Exception):
    """One line for the user: the server is not there, refused, or broke off."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an answer's text; ``finish_reason`` comes with the last one."""

    text: str
    finish_reason: str | None = None


class ChatClient:
    """Asks the server at ``url`` (http or https, with or without /v1)."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            self._address = ServerAddress.parse(url)
        except ValueError as error:
            raise ChatError(str(error)) from None
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def first_model(self) -> str:
        """The name of the first model that the server lists. Raises ``ChatError``."""
        connection, response = self._request("GET", "/models", None)
        try:
            models = json.loads(response.read())["data"]
            return str(models[0]["id"])
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            raise ChatError(f"{self._url} does not list its models as an OpenAI server does") from error
        finally:
            connection.close()

    def stream(self, model: str, messages: list[dict[str, str]]) -> Generator[Piece, None, None]:
        """The answer piece by piece. Raises ``ChatError``; whatever ends the loop closes the connection."""
        body = {"model": model, "messages": messages, "stream": True}
        connection, response = self._request("POST", "/chat/completions", json.dumps(body).encode())
        is_finished = False
        try:
            for data in _events(response):
                if data == "[DONE]":
                    return
                for piece in _pieces(data):
                    is_finished = is_finished or piece.finish_reason is not None
                    yield piece
        except (OSError, HTTPException) as error:
            raise ChatError(f"the connection to {self._url} broke ({reason(error)})") from error
        finally:
            connection.close()
        if not is_finished:
            raise ChatError(f"{self._url} ended the answer before it was complete")

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[HTTPConnection, HTTPResponse]:
        try:
            connection = self._address.connection(_CONNECT_TIMEOUT)
        except ValueError as error:
            raise ChatError(str(error)) from error
        try:
            connection.connect()
            # A long prompt may take minutes to its first token; Ctrl-C ends the wait.
            connection.sock.settimeout(None)
            connection.request(method, f"{self._address.base}/v1{path}", body, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ChatError(_refusal(response))
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            raise ChatError(f"no server answers at {self._url} ({reason(error)})") from error
        except BaseException:
            connection.close()
            raise
        return connection, response


def _events(response: HTTPResponse) -> Iterator[str]:
    """The data of each server-sent event."""
    lines: list[str] = []
    while raw := response.readline():
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


def _pieces(data: str) -> Iterator[Piece]:
    try:
        chunk = json.loads(data)
        if error := chunk.get("error"):
            raise ChatError(error_text(error))
        for choice in chunk.get("choices") or ():
            yield Piece((choice.get("delta") or {}).get("content") or "", choice.get("finish_reason"))
    except (ValueError, AttributeError, TypeError) as error:
        raise ChatError(f"the server sent something that is no chat chunk: {data[:100]}") from error


def _refusal(response: HTTPResponse) -> str:
    """One line from an error response, with the wait that the server asks for."""
    body = response.read(65536)
    try:
        text = error_text(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        text = response.reason
    wait = response.getheader("Retry-After")
    return f"{response.status}: {text}" + (f" (try again in {wait} s)" if wait else "")

"""Asks a server what it does: ``/metrics``, and ``/debug/requests`` where that exists and may be seen.

Standard library only, one connection a question; not the terminal.
"""

import json
from dataclasses import dataclass
from http.client import HTTPException

import msgspec

from gateway.request_view import RequestsView
from octavo.server_address import ServerAddress, error_text, reason

TIMEOUT = 10.0
LARGEST = 64 * 2**20  # bytes of an answer


class TopError(Exception):
    """One line for the user: the server is not there, or does not answer this."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What ``/debug/requests`` said. ``view`` None: nothing, and ``note`` is why."""

    view: RequestsView | None
    note: str = ""


class TopClient:
    """Asks the server at ``url`` (http or https, with or without /v1). Raises TopError if that is no address."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            self._address = ServerAddress.parse(url)
        except ValueError as error:
            raise TopError(str(error)) from None
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def metrics(self) -> str:
        """Prometheus text. Raises TopError."""
        status, body = self._get("/metrics")
        if status != 200:
            raise TopError(_refusal(status, body, "metrics"))
        return body.decode("utf-8", "replace")

    def requests(self) -> Requests:
        """What is in flight, if the server tells. Raises TopError if it does not answer at all."""
        status, body = self._get("/debug/requests")
        if status == 404:
            return Requests(None, "this server does not list its requests")
        if status != 200:
            return Requests(None, _refusal(status, body, "admin"))
        try:
            return Requests(msgspec.json.decode(body, type=RequestsView))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Requests(None, "/debug/requests is not as this version of octavo knows it")

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            connection = self._address.connection(TIMEOUT)
        except ValueError as error:
            raise TopError(str(error)) from error
        try:
            connection.request("GET", self._address.base + path, headers=self._headers)
            response = connection.getresponse()
            return response.status, response.read(LARGEST)
        except (OSError, HTTPException, ValueError) as error:
            raise TopError(f"no server answers at {self._address.url} ({reason(error)})") from error
        finally:
            connection.close()


def _refusal(status: int, body: bytes, scope: str) -> str:
    """One line, and what would help. ``scope``: of the key that is needed."""
    try:
        text = error_text(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        text = "no reason given"
    advice = {401: f" (--api-key, with the scope {scope})", 404: " (is it a model server?)"}.get(status, "")
    return f"{status}: {text}{advice}"

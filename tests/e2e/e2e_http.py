"""An HTTP client on a plain socket, so that a test sees every event and can leave whenever it likes."""

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from e2e_process import ServerProcess

CHAT, COMP = "/v1/chat/completions", "/v1/completions"
DONE = "[DONE]"


def chat(text: str = "Tell me about the sea.", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def comp(prompt: Any = "The lighthouse keeper", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "temperature": 0, **fields}


def long_runner(prompt: Any = "The lighthouse keeper", max_tokens: int = 30_000, **fields: Any) -> dict[str, Any]:
    """A stream that runs for much longer than a test unless somebody ends it."""
    return comp(prompt, stream=True, ignore_eos=True, max_tokens=max_tokens, **fields)


def strict_json(text: bytes | str) -> Any:
    """JSON in UTF-8, without the constants that JSON does not have."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text, parse_constant=refuse)


class Exchange:
    """One request on a connection of its own. Reading is up to the test."""

    def __init__(
        self,
        server: ServerProcess,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        receive_buffer: int | None = None,
        timeout: float = 60.0,
        headers: dict[str, str] | None = None,
    ) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self._socket = socket.socket(socket.AF_UNIX if server.uds else socket.AF_INET)
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(timeout)
        fields = {"Host": "test", "Content-Type": "application/json", "Content-Length": str(len(data))}
        fields |= {"Connection": "close", **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            self._socket.connect(str(server.uds) if server.uds else ("127.0.0.1", server.port))
            self._socket.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        except OSError:
            self._socket.close()
            raise
        self._unread = b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: list[Any] = []  # in order; [DONE] stays text
        self.event_times: list[float] = []
        self.is_ended = False  # the body ended as HTTP ends it

    def close(self, *, reset: bool = False) -> None:
        """Leave; with ``reset`` rudely, by RST."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- reading

    def read_head(self) -> "Exchange":
        """Status and header fields."""
        if not self.status:
            head = self._until(b"\r\n\r\n").decode("latin-1")
            first, *lines = head.split("\r\n")
            self.status = int(first.split()[1])
            self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        return self

    def read_body(self) -> bytes:
        """The rest of the body."""
        self.read_head()
        return b"".join(self._pieces())

    def read_events(self, most: int | None = None) -> "Exchange":
        """``most`` further events, or all that come until the body ends. Each must be UTF-8 and strict JSON."""
        self.read_head()
        assert self.headers["content-type"].startswith("text/event-stream"), (self.status, self.headers)
        wanted = None if most is None else len(self.events) + most
        if not self.is_ended and (wanted is None or len(self.events) < wanted):
            for piece in self._pieces():
                # The server sends whole events at a time, each "data: ...\n\n".
                blocks = re.split(rb"\n\n", piece)
                assert blocks.pop() == b"", piece
                for block in blocks:
                    assert block.startswith(b"data: "), block
                    text = block.removeprefix(b"data: ").decode("utf-8")
                    self.events.append(text if text == DONE else strict_json(text))
                    self.event_times.append(time.monotonic())
                if wanted is not None and len(self.events) >= wanted:
                    break
        return self

    def _pieces(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self._until(b"\r\n"), 16):
                yield self._exactly(size + 2)[:-2]
            self.is_ended = True
        else:
            yield self._exactly(int(self.headers["content-length"]))
            self.is_ended = True

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._unread:
            self._fill()
        found, _, self._unread = self._unread.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._fill()
        found, self._unread = self._unread[:size], self._unread[size:]
        return found

    def _fill(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the connection ended inside the response")
        self._unread += data

    # ---- what came

    @property
    def chunks(self) -> list[Any]:
        return [event for event in self.events if event != DONE and "error" not in event]

    @property
    def errors(self) -> list[Any]:
        return [event["error"] for event in self.events if event != DONE and "error" in event]

    def choice(self, index: int = 0) -> list[Any]:
        """The parts of one choice, in order."""
        return [choice for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index]

    def deltas(self, index: int = 0) -> list[str]:
        return [
            choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in self.choice(index)
        ]

    def text(self, index: int = 0) -> str:
        return "".join(self.deltas(index))

    def finish_reasons(self, index: int = 0) -> list[str]:
        return [choice["finish_reason"] for choice in self.choice(index) if choice["finish_reason"]]

    def ended_well(self) -> "Exchange":
        """Read to the end, which must be exactly one ``[DONE]`` and no error."""
        self.read_events()
        assert self.status == 200
        assert not self.errors, self.errors
        assert self.events[-1] == DONE
        assert self.events.count(DONE) == 1
        assert self.is_ended
        return self


def wait_for_turn(server: ServerProcess) -> None:
    """Returns when the gateway has read all that was sent before: a new connection comes after them."""
    with Exchange(server, "/tokenize", {"prompt": "a"}) as exchange:
        assert exchange.read_head().status == 200
        exchange.read_body()


def stream(server: ServerProcess, path: str, body: dict[str, Any]) -> Exchange:
    """A whole stream."""
    with Exchange(server, path, {**body, "stream": True}) as exchange:
        return exchange.ended_well()


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> Any:
    """The body of a 200."""
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return strict_json(response.content)


def complete(server: ServerProcess, prompt: Any = "The lighthouse keeper", **fields: Any) -> Any:
    """The only choice of a completion."""
    (choice,) = post(server, COMP, comp(prompt, **fields))["choices"]
    return choice

"""The thread that owns the engine's socket: decode, hash prompts, encode; the busy loop sees two queues.

It also beats: every 200 ms each known gateway hears that this process lives and how far its loop has come.
"""

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec
import structlog
import zmq

from engine_core.channel import Compiled, GatewayGone, Inbound, ProfileNews
from engine_core.progress import HowFar
from engine_core.request_builder import RequestBuilder
from ipc.codec import decode_for_engine, encode
from ipc.config import TransportConfig
from ipc.messages import PROTOCOL, Add, Beat, Failed, Finish, FinishReason, Hello, Ready, ToGateway
from ipc.transport import bind_router

BEAT_SECONDS = 0.2
RECEIVED_AT_ONCE = 64  # messages; then answers and beats go out
FINISH_REASONS = frozenset(FinishReason)

log = structlog.get_logger("octavo.engine.io")


class SocketThread:
    """Implements ``core.Channel``. ``progress`` says how far the engine has come."""

    def __init__(self, config: TransportConfig, progress: Callable[[], HowFar]) -> None:
        self._config, self._progress = config, progress
        self._inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self._outbox: deque[tuple[bytes | None, ToGateway]] = deque()  # None: to every gateway
        self._gateways: set[bytes] = set()
        self._ready: Ready | None = None
        self._build_request: RequestBuilder | None = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = bind_router(self._context, config)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="engine-io", daemon=True)
        self._thread.start()

    # ---- for the busy loop

    def receive(self, *, timeout: float | None) -> list[Inbound]:
        """Everything that has come; waits up to ``timeout`` seconds for the first (None: for ever, 0: not at all)."""
        messages = []
        try:
            messages.append(self._inbox.get(block=timeout != 0, timeout=timeout or None))
            while True:
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            return messages

    def post(self, owner: bytes, message: Compiled | ProfileNews) -> None:
        """To the busy loop, from any thread."""
        self._inbox.put((owner, message))

    def send(self, owner: bytes, message: ToGateway) -> None:
        """To one gateway."""
        self._outbox.append((owner, message))
        self._wake()

    def broadcast(self, message: ToGateway) -> None:
        """To every gateway that has said hello."""
        self._outbox.append((None, message))
        self._wake()

    def announce(self, ready: Ready, build_request: RequestBuilder) -> None:
        """The model is loaded: tell those who have asked, and whoever asks from now on."""
        self._build_request, self._ready = build_request, ready
        self.broadcast(ready)

    def close(self) -> None:
        """Send what is queued and close the socket."""
        self._is_closing = True
        self._wake()
        self._thread.join()
        self._context.destroy(linger=1000)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_write, b"\0")

    # ---- the thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException:
            # Without this thread the engine is deaf; its supervisor sees it end.
            log.exception("engine socket thread failed")
            os._exit(1)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        next_beat = time.monotonic()
        while not self._is_closing or self._outbox:
            ready = dict(poller.poll(max(0, int((next_beat - time.monotonic()) * 1000) + 1)))
            if self._wake_read in ready:
                os.read(self._wake_read, 65536)
            self._receive_some()
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_SECONDS
                num_loops, num_layers, step_ns = self._progress()
                beat = Beat(self._config.incarnation, num_loops, num_layers, time.monotonic_ns(), step_ns)
                self._outbox.append((None, beat))
            while self._outbox:
                self._send_one(*self._outbox.popleft())

    def _receive_some(self) -> None:
        for _ in range(RECEIVED_AT_ONCE):
            try:
                owner, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode_for_engine(b"".join(frames))
            except msgspec.DecodeError as error:
                log.error("undecodable message dropped", error=str(error))
                continue
            if isinstance(message, Hello):
                self._greet(owner, message)
            elif isinstance(message, Add):
                self._add(owner, message)
            elif isinstance(message, Finish) and message.reason not in FINISH_REASONS:
                log.error("unknown finish reason dropped", reason=message.reason)
            else:
                self._inbox.put((owner, message))

    def _add(self, owner: bytes, message: Add) -> None:
        if self._build_request is None:
            self._outbox.append((owner, Failed(message.request_id, -1, "not_ready", "the model is not loaded yet")))
        else:
            self._inbox.put((owner, self._build_request(owner, message)))

    def _greet(self, owner: bytes, message: Hello) -> None:
        if message.protocol != PROTOCOL:
            log.error("gateway speaks another protocol", theirs=message.protocol, ours=PROTOCOL)
            return
        self._gateways.add(owner)
        if self._ready is not None:
            self._outbox.append((owner, self._ready))

    def _send_one(self, owner: bytes | None, message: ToGateway) -> None:
        data = encode(message)
        for target in list(self._gateways) if owner is None else [owner]:
            try:
                self._socket.send_multipart((target, data))
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._gateways.discard(target)
                self._inbox.put((target, GatewayGone()))  # each time: it may have been read from since the first

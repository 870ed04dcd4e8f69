"""Takes ``python -m engine_core``'s place: no torch, the same wire, and it does what the model folder's orders say.

Its text is the prompt's last token again and again, one a millisecond. Started by a script of
``octavo_stubs.make_executable``. Orders that name a token id are about requests whose prompt ends with it.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from ipc.codec import decode_for_engine, encode, pack_ids, unpack_ids
from ipc.config import EngineConfig
from ipc.journal import StepJournal
from ipc.messages import (
    PROTOCOL,
    Abort,
    Accepted,
    Add,
    Beat,
    Failed,
    Finish,
    FinishReason,
    Hello,
    Output,
    Outputs,
    Ready,
    Stats,
    ToGateway,
)
from ipc.transport import bind_router

NUM_IDS = 300
MAX_MODEL_LEN = 512


class Stub:
    """One loop for everything: a message if there is one, then a token for everybody."""

    def __init__(self, config: EngineConfig, orders: dict[str, Any]) -> None:
        self.incarnation, self.orders = config.transport.incarnation, orders
        self.socket = bind_router(zmq.Context(), config.transport)
        self.running: dict[tuple[int, int], tuple[bytes, int, int]] = {}  # owner, token, tokens left
        self.num_tokens = self.num_loops = 0
        assert config.journal is not None
        self.journal = StepJournal(Path(config.journal), 64)

    def send(self, owner: bytes, message: ToGateway) -> None:
        self.socket.send_multipart((owner, encode(message)))

    def serve(self) -> None:
        while True:
            self.num_loops += 1
            while self.socket.poll(1):
                owner, data = self.socket.recv_multipart()
                self.handle(owner, decode_for_engine(data))
            self.journal.begin(self.num_loops, [request_id for request_id, _ in self.running])
            for (request_id, choice), (owner, token, left) in list(self.running.items()):
                self.beat(owner)
                if self.incarnation >= self.orders.get("slow_from", 1):
                    time.sleep(self.orders.get("seconds_per_token", 0))
                self.num_tokens += 1
                self.advance(owner, request_id, choice, token, left - 1)
            self.journal.end(self.num_loops)

    def beat(self, owner: bytes) -> None:
        self.send(owner, Beat(self.incarnation, self.num_loops, 0, time.monotonic_ns()))

    def handle(self, owner: bytes, message: object) -> None:
        if isinstance(message, Hello):
            self.send(owner, Ready(PROTOCOL, self.incarnation, "n", "d", NUM_IDS, NUM_IDS, MAX_MODEL_LEN, 16, 64, 0, 0))
        elif isinstance(message, Add):
            self.add(owner, message)
        elif isinstance(message, Abort):
            self.running = {key: value for key, value in self.running.items() if key[0] != message.request_id}
        elif isinstance(message, Finish):
            self.advance(owner, message.request_id, message.choice, 0, 0, FinishReason.STOP)
        self.send(owner, Stats(self.incarnation, 1, num_running=len(self.running), generation_tokens=self.num_tokens))

    def add(self, owner: bytes, message: Add) -> None:
        token = unpack_ids(message.prompt_ids)[-1]
        if token == self.orders.get("fail_on"):
            self.send(owner, Failed(message.request_id, -1, "corrupt_logits", "not a number"))
            return
        if token == self.orders.get("die_on") and (self.incarnation == 1 or not self.orders.get("die_once")):
            self.journal.begin(self.num_loops, [message.request_id, *(request_id for request_id, _ in self.running)])
            os._exit(self.orders.get("status", 1))
        if token == self.orders.get("stall_on") and self.incarnation == 1:
            while True:
                self.beat(owner)
                time.sleep(0.05)
        self.send(owner, Accepted(message.request_id))
        for choice, output in message.choices:
            left = message.params.max_tokens - len(unpack_ids(output))
            self.running[message.request_id, choice] = (owner, token, left)

    def advance(
        self,
        owner: bytes,
        request_id: int,
        choice: int,
        token: int,
        left: int,
        reason: FinishReason = FinishReason.LENGTH,
    ) -> None:
        ids = pack_ids([token]) if token else b""
        finish = reason if left <= 0 else None
        self.send(
            owner, Outputs(self.incarnation, time.monotonic_ns(), (Output(request_id, choice, ids, None, finish),))
        )
        if finish is None:
            self.running[request_id, choice] = (owner, token, left)
        else:
            self.running.pop((request_id, choice), None)


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    folder = Path(config.model.model)
    orders = json.loads((folder / "orders.json").read_text())
    with (folder / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    (folder / "starting.json").write_text(json.dumps({"pid": os.getpid(), "argv": sys.argv[1:]}))
    (folder / "starting.json").rename(folder / "started.json")  # there is never half of it
    if "exit" in orders:
        sys.exit(orders["exit"])
    if orders.get("hang"):
        end_with_the_one_who_started_it()
    threading.Thread(target=end_with_the_one_who_started_it, daemon=True).start()
    Stub(config, orders).serve()


def end_with_the_one_who_started_it() -> None:
    """Its end closes standard input."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()

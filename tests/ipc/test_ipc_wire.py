"""The wire as it was agreed on: bytes that must mean the same for ever. Fields are only appended."""

import typing

import msgspec
import pytest
from wire_cases import PARAMS

from ipc.codec import decode_for_engine, decode_for_gateway, encode
from ipc.messages import (
    STEP_TOKEN_BUCKETS,
    Abort,
    Accepted,
    Add,
    Beat,
    Drain,
    EventKind,
    Failed,
    Finish,
    FinishReason,
    Hello,
    Output,
    Outputs,
    Profile,
    Profiled,
    Ready,
    Refused,
    Stats,
    ToEngine,
    ToGateway,
    TokenLogprobs,
    WaitReason,
)
from ipc.params import BeamParams

GOLDEN: list[tuple[ToEngine | ToGateway, str]] = [
    (Hello(1), "92 01 01"),
    (
        Add(
            2**64 - 1,
            12345678901,
            "m",
            b"\1\0\0\0",
            PARAMS,
            ((0, b"\2\0\0\0"), (3, b"")),
            "a",
            5,
            ("json", "{}"),
            "salt",
            -1,
            "t",
            0.5,
            99,
            True,
            "00-ab",
            BeamParams(4, 0.5),
        ),
        "dc0012 02 cfffffffffffffffff cf00000002dfdc1c35 a16d c40401000000"
        " dc0010 cb3fe0000000000000 04 cb3fd0000000000000 cb3fc0000000000000 cbbff0000000000000 cb3ff8000000000000"
        "  cb4000000000000000 cfffffffffffffffff 07 02 920102 9103 05 919206cbc059000000000000 920809 92920a0b910c"
        " 92 9200c40402000000 9203c400"
        " a161 05 92a46a736f6ea27b7d a473616c74 ff a174 cb3fe0000000000000 63 c3 a530302d6162 9204cb3fe0000000000000",
    ),
    (Finish(7, 1, FinishReason.STOP, 3), "95 03 07 01 00 03"),
    (Abort(7), "92 04 07"),
    (Drain(), "91 05"),
    (Profile(7, "start", 50), "94 06 07 a57374617274 32"),
    (
        Ready(1, 2, "n", "d", 49152, 49150, 8192, 16, 1000, 111, 222, 128, 512, (0.5,)),
        "9f 10 01 02 a16e a164 cdc000 cdbffe cd2000 10 cd03e8 6f ccde cc80 cd0200 91 cb3fe0000000000000",
    ),
    (Accepted(7), "92 11 07"),
    (Refused(7, "full", 1500), "94 12 07 a466756c6c cd05dc"),
    (Failed(7, -1, "impossible", "too long"), "95 13 07 ff aa696d706f737369626c65 a8746f6f206c6f6e67"),
    (
        Outputs(
            2,
            333,
            (
                Output(
                    7,
                    1,
                    b"\5\0\0\0",
                    TokenLogprobs(1, b"\0\0\x80\xbf", b"\1\0\0\0", b"\5\0\0\0", b"\0\0\x80\xbf"),
                    FinishReason.LENGTH,
                    5,
                    ((EventKind.QUEUED, 111, 0), (EventKind.CACHE_HIT, 112, 16)),
                    16,
                    TokenLogprobs(0, b"", b""),
                    17,
                    18,
                ),
            ),
        ),
        "94 14 02 cd014d 91 9b 07 01 c40405000000 95 01 c4040000 80bf c40401000000 c40405000000 c404000080bf"
        " 01 05 92 93 00 6f 00 93 03 70 10 10 95 00 c400 c400 c400 c400 11 12",
    ),
    (
        Profiled(7, "failed", "full", ("/a", "/b"), 50, 0.5),
        "97 17 07 a66661696c6564 a466756c6c 92a22f61a22f62 32 cb3fe0000000000000",
    ),
    (Beat(2, 10, 300, 444), "95 15 02 0a cd012c cd01bc"),
    (
        Stats(2, 555, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, (17, 18), 19, ((6, 1), (0, 2))),
        "dc0015 16 02 cd022b 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 92 11 12 13 92 92 06 01 92 00 02",
    ),
]
golden = pytest.mark.parametrize(("message", "spelled"), GOLDEN, ids=[type(message).__name__ for message, _ in GOLDEN])


def decode(message: ToEngine | ToGateway, data: bytes) -> ToEngine | ToGateway:
    """Data that comes from the side the message comes from."""
    return decode_for_engine(data) if isinstance(message, ToEngine) else decode_for_gateway(data)


@golden
def test_old_bytes_mean_what_they_meant(message: ToEngine | ToGateway, spelled: str) -> None:
    assert decode(message, bytes.fromhex(spelled)) == message


@golden
def test_new_bytes_begin_with_the_old_fields(message: ToEngine | ToGateway, spelled: str) -> None:
    old, new = msgspec.msgpack.decode(bytes.fromhex(spelled)), msgspec.msgpack.decode(encode(message))
    assert new[: len(old)] == old


@golden
def test_fields_of_a_later_version_are_passed_over(message: ToEngine | ToGateway, spelled: str) -> None:
    old, new = msgspec.msgpack.decode(bytes.fromhex(spelled)), msgspec.msgpack.decode(encode(message))
    fields = old + new[len(old) :]  # with what was appended since
    assert decode(message, msgspec.msgpack.encode([*fields, "later", 1])) == message


def test_every_message_has_a_golden_one() -> None:
    assert {type(message) for message, _ in GOLDEN} == {*typing.get_args(ToEngine), *typing.get_args(ToGateway)}


def test_messages_that_lack_appended_fields_are_read_with_their_defaults() -> None:
    """An ``Add`` of the fields that it cannot do without."""
    add = decode_for_engine(msgspec.msgpack.encode([2, 5, 6, "m", b"", []]))
    assert isinstance(add, Add)
    assert (add.request_id, add.choices, add.num_prompt_logprobs, add.is_resumed) == (5, ((0, b""),), -1, False)
    assert (add.params.temperature, add.params.max_tokens, add.params.num_logprobs) == (1.0, 16, -1)


def test_numbers_of_enumerations_stay() -> None:
    reasons = ["STOP", "LENGTH", "ABORT", "ERROR", "DEADLINE"]
    assert [(reason.name, int(reason)) for reason in FinishReason] == [(name, n) for n, name in enumerate(reasons)]
    assert [(kind.name, int(kind)) for kind in EventKind] == [
        ("QUEUED", 0),
        ("ADMITTED", 1),
        ("BLOCKED", 2),
        ("CACHE_HIT", 3),
        ("CHUNK", 4),
        ("PREEMPTED", 5),
        ("RESUMED", 6),
        ("GRAMMAR_READY", 7),
        ("PREEMPTED_BY_SWAP", 8),
        ("RESTARTED", 9),
    ]
    assert [(reason.name, int(reason)) for reason in WaitReason] == [
        ("TOKEN_BUDGET", 0),
        ("KV_BLOCKS", 1),
        ("SEQUENCE_SLOTS", 2),
        ("POLICY", 3),
        ("GRAMMAR", 4),
        ("ADAPTER", 5),
        ("FORK", 6),
        ("KV_DISK", 7),
    ]


def test_buckets_rise() -> None:
    assert list(STEP_TOKEN_BUCKETS) == sorted(set(STEP_TOKEN_BUCKETS))


@pytest.mark.parametrize(
    ("max_model_len", "num_blocks", "longest"), [(8192, 1000, 8192), (8192, 512, 8192), (8192, 511, 8177), (64, 2, 33)]
)
def test_the_longest_sequence_fits_context_and_pool(max_model_len: int, num_blocks: int, longest: int) -> None:
    """The KV of the last token is never needed."""
    ready = Ready(1, 0, "", "", 10, 10, max_model_len, 16, num_blocks, 0, 0)
    assert ready.max_sequence_len == longest

"""The wire between gateway processes and the desk: what goes in comes out, and one side's words are not the other's."""

import math
from typing import Any, get_args

import msgspec
import pytest

from ipc.codec import decode_for_desk, decode_for_engine, decode_for_gateway_process, encode
from ipc.desk import (
    Answer,
    Check,
    Close,
    Collect,
    Enter,
    Entered,
    FromDesk,
    Leave,
    Load,
    Outage,
    Phase,
    Question,
    Report,
    Serving,
    Stop,
    ToDesk,
    TurnedAway,
    Unusable,
)
from ipc.messages import Abort, Accepted, Profile, ToEngine

HEADERS = ((b"x-ratelimit-limit-tokens", b"10"),)
FOR_DESK: list[Any] = [
    Check(1, "a", 70_000),
    Enter(2, "a", 100, 2, 3, math.inf, True, None, math.inf),
    Enter(3, "a", 100, 2, 3, 16.0, False, 7, 0.5),
    Leave(4),
    Question(5, "metrics"),
    Question(6, "profile", Profile(0, "start", 50)),
    Report(6, (("steps_total", ("x",), (1.0, 2.5)),)),
    Serving(),
    Unusable("tokenizer.json is missing"),
    Abort(7),
]
FOR_GATEWAY: list[Any] = [
    Entered(1, 9, HEADERS),
    TurnedAway(2, "busy", 3.0, HEADERS),
    Answer(3, b"\0"),
    Collect(4),
    Phase("loading"),
    Load("/model"),
    Outage("it died"),
    Close(),
    Stop(),
    Accepted(7),
]


def test_all_messages_are_tried() -> None:
    own = set(get_args(ToDesk)) - set(get_args(ToEngine))
    assert {type(message) for message in FOR_DESK} - {Abort} == own
    assert {type(message) for message in FOR_GATEWAY} - {Accepted} == set(get_args(FromDesk))


@pytest.mark.parametrize("message", FOR_DESK, ids=lambda message: type(message).__name__)
def test_what_a_gateway_says_is_what_the_desk_hears(message: Any) -> None:
    assert decode_for_desk(encode(message)) == message
    with pytest.raises(msgspec.DecodeError):
        decode_for_gateway_process(encode(message))


@pytest.mark.parametrize("message", FOR_GATEWAY, ids=lambda message: type(message).__name__)
def test_what_the_desk_says_is_what_a_gateway_hears(message: Any) -> None:
    assert decode_for_gateway_process(encode(message)) == message
    with pytest.raises(msgspec.DecodeError):
        decode_for_desk(encode(message))


def test_an_engine_knows_no_desk() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_for_engine(encode(Leave(1)))

"""Bytes and messages: what goes in comes out, and what is no message is refused."""

import math
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import to_engine, to_gateway

from ipc.codec import (
    decode_for_engine,
    decode_for_gateway,
    encode,
    join_logprobs,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from ipc.messages import Abort, Accepted, FinishReason, ToEngine, ToGateway, TokenLogprobs
from ipc.params import SamplingParams

fixed = settings(derandomize=True, deadline=None, max_examples=200)


@given(to_engine)
@fixed
def test_what_a_gateway_says_is_what_the_engine_hears(message: ToEngine) -> None:
    heard = decode_for_engine(encode(message))
    assert type(heard) is type(message)
    assert heard == message
    assert decode_for_engine(memoryview(encode(message))) == message


@given(to_gateway)
@fixed
def test_what_an_engine_says_is_what_the_gateway_hears(message: ToGateway) -> None:
    heard = decode_for_gateway(encode(message))
    assert type(heard) is type(message)
    assert heard == message


@given(st.one_of(to_engine, to_gateway), st.integers(0, 2**16))
@fixed
def test_a_message_that_is_cut_off_is_refused(message: ToEngine | ToGateway, place: int) -> None:
    data = encode(message)
    for decode in (decode_for_engine, decode_for_gateway):
        with pytest.raises(msgspec.DecodeError):
            decode(data[: place % len(data)])


@given(st.binary(max_size=20))
@fixed
def test_noise_is_a_message_or_refused(data: bytes) -> None:
    for decode in (decode_for_engine, decode_for_gateway):
        try:
            message = decode(data)
        except msgspec.DecodeError:
            continue
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "text",
        [],
        {},
        [0],
        [4],
        [4, "7"],
        [4, 1.5],
        [4, None],
        [99, 1],
        ["4", 7],
        [3, 1, 2, 3],
        [2, 1, 1, "", "ids that are text", [], [[0, b""]]],
        [2, 1, 1, "", b"", [], [[0, b"", 1]]],
    ],
)
def test_what_is_no_message_for_the_engine_is_refused(value: object) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_for_engine(msgspec.msgpack.encode(value))


def test_messages_have_a_direction() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_for_engine(encode(Accepted(1)))
    with pytest.raises(msgspec.DecodeError):
        decode_for_gateway(encode(Abort(1)))


# ---- packed numbers


@given(st.lists(st.integers(0, 2**32 - 1)))
@fixed
def test_ids_are_u32_little_endian(ids: list[int]) -> None:
    assert pack_ids(ids) == struct.pack(f"<{len(ids)}I", *ids)
    assert unpack_ids(pack_ids(ids)) == ids


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_an_id_outside_u32_is_refused(bad: int) -> None:
    with pytest.raises(OverflowError):
        pack_ids([1, bad])


def test_an_id_is_an_integer() -> None:
    with pytest.raises(TypeError):
        pack_ids([1.5])  # type: ignore[list-item]


@given(st.lists(st.floats(width=32, allow_nan=False)))
@fixed
def test_floats_are_f32_little_endian(values: list[float]) -> None:
    assert pack_floats(values) == struct.pack(f"<{len(values)}f", *values)
    assert unpack_floats(pack_floats(values)) == values


def test_floats_keep_what_is_no_number() -> None:
    assert [str(value) for value in unpack_floats(pack_floats([math.inf, -math.inf, math.nan]))] == [
        "inf",
        "-inf",
        "nan",
    ]


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_packed_numbers_have_four_bytes_each(length: int) -> None:
    for unpack in (unpack_ids, unpack_floats):
        with pytest.raises(ValueError, match="multiple"):
            unpack(b"\0" * length)


def test_logprobs_are_put_together_in_order() -> None:
    one = TokenLogprobs(2, b"a", b"b", b"c", b"d")
    other = TokenLogprobs(2, b"1", b"2", b"3", b"4")
    assert join_logprobs(2, [one, other]) == TokenLogprobs(2, b"a1", b"b2", b"c3", b"d4")
    assert join_logprobs(2, iter([one])) == one
    assert join_logprobs(3, []) == TokenLogprobs(3, b"", b"")


# ---- small things that cross the wire


def test_both_kinds_of_stop_ids_end_a_sequence() -> None:
    params = SamplingParams(eos_token_ids=(1, 2), stop_token_ids=(2, 3))
    assert params.stop_set == {1, 2, 3}
    assert SamplingParams().stop_set == frozenset()


def test_reasons_have_the_names_that_clients_see() -> None:
    assert [reason.name.lower() for reason in FinishReason] == ["stop", "length", "abort", "error", "deadline"]

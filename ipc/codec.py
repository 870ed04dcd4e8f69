"""Bytes and messages: msgpack for structs, u32 little-endian for token ids."""

import sys
from array import array
from collections.abc import Iterable

import msgspec

from ipc.desk import ToDesk, ToGatewayProcess
from ipc.messages import ToEngine, ToGateway, TokenLogprobs

_encoder = msgspec.msgpack.Encoder()
_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
_gateway_decoder = msgspec.msgpack.Decoder(ToGateway)
_desk_decoder = msgspec.msgpack.Decoder(ToDesk)
_gateway_process_decoder = msgspec.msgpack.Decoder(ToGatewayProcess)


def encode(message: ToDesk | ToGatewayProcess) -> bytes:
    """One message as msgpack."""
    return _encoder.encode(message)


def decode_for_engine(data: bytes | memoryview) -> ToEngine:
    """A message of a gateway. Raises msgspec.DecodeError on anything else."""
    return _engine_decoder.decode(data)


def decode_for_gateway(data: bytes | memoryview) -> ToGateway:
    """A message of an engine. Raises msgspec.DecodeError on anything else."""
    return _gateway_decoder.decode(data)


def decode_for_desk(data: bytes | memoryview) -> ToDesk:
    """A message of a gateway process. Raises msgspec.DecodeError on anything else."""
    return _desk_decoder.decode(data)


def decode_for_gateway_process(data: bytes | memoryview) -> ToGatewayProcess:
    """A message of the desk, or of an engine that it passes on. Raises msgspec.DecodeError on anything else."""
    return _gateway_process_decoder.decode(data)


def _packed(typecode: str, values: Iterable[int] | Iterable[float]) -> bytes:
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as u32 little-endian. Raises OverflowError outside u32."""
    if isinstance(ids, tuple) and len(ids) == 1:  # what a step has for a sequence, in a fifth of the time
        return int(ids[0]).to_bytes(4, "little")
    return _packed("I", ids)


def unpack_ids(data: bytes) -> list[int]:
    """The ids of ``pack_ids``. Raises ValueError when the length is not a multiple of four."""
    ids = array("I", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def pack_floats(values: Iterable[float]) -> bytes:
    """Values as f32 little-endian."""
    return _packed("f", values)


def unpack_floats(data: bytes) -> list[float]:
    """The values of ``pack_floats``. Raises ValueError when the length is not a multiple of four."""
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def join_logprobs(num_top: int, parts: Iterable[TokenLogprobs]) -> TokenLogprobs:
    """Put consecutive tokens' log-probabilities together; no parts make an empty one."""
    parts = list(parts)
    return TokenLogprobs(
        num_top,
        b"".join(part.logprobs for part in parts),
        b"".join(part.ranks for part in parts),
        b"".join(part.top_ids for part in parts),
        b"".join(part.top_logprobs for part in parts),
    )

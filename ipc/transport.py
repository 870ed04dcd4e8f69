"""Sockets between gateways and engines: one ROUTER an engine incarnation, one DEALER a gateway for each.

An ipc endpoint lies in a private directory; a tcp endpoint takes CURVE keys, both ways known beforehand. Neither
side has a high-water mark: what is queued is bounded by admission, and nothing may be dropped.
"""

import os
import stat
from pathlib import Path

import zmq

from ipc.config import TransportConfig
from ipc.errors import ConfigError

MAX_IPC_PATH_BYTES = 107  # sockaddr_un.sun_path, less the final NUL


def ipc_endpoint(directory: Path, incarnation: int) -> str:
    """An endpoint in ``directory``, which must be ours alone. Raises ConfigError when the path is too long or open."""
    path = directory / f"engine-{incarnation}.sock"
    if len(os.fsencode(path)) > MAX_IPC_PATH_BYTES:
        raise ConfigError(f"socket path {path} is longer than {MAX_IPC_PATH_BYTES} bytes: choose a shorter TMPDIR")
    mode = directory.stat()
    if mode.st_uid != os.geteuid() or stat.S_IMODE(mode.st_mode) & 0o077:
        raise ConfigError(f"socket directory {directory} must belong to this user alone (mode 0700)")
    return f"ipc://{path}"


def _prepare(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)


def _check_curve(config: TransportConfig, *keys: str | None) -> bool:
    """Whether the endpoint is encrypted; a tcp endpoint must be."""
    if config.endpoint.startswith("tcp://"):
        if not all(keys):
            raise ConfigError(f"endpoint {config.endpoint}: tcp needs CURVE keys on both sides")
        return True
    return False


def bind_router(context: zmq.Context[zmq.Socket[bytes]], config: TransportConfig) -> zmq.Socket[bytes]:
    """The engine's end. Sending to a peer that is gone raises zmq.ZMQError(EHOSTUNREACH)."""
    is_encrypted = _check_curve(config, config.server_secret_key, config.server_public_key)
    socket = context.socket(zmq.ROUTER)
    _prepare(socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if is_encrypted:
        assert config.server_secret_key is not None
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, config.server_secret_key.encode())
    socket.bind(config.endpoint)
    return socket


def connect_dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    config: TransportConfig,
    client_keys: tuple[str, str] | None = None,
    identity: str | None = None,
) -> zmq.Socket[bytes]:
    """A gateway's end; ``client_keys`` (public, secret) for tcp; ``identity``: by which the other end knows it, one of
    ZeroMQ's own by default. The engine may bind later."""
    is_encrypted = _check_curve(config, config.server_public_key, *(client_keys or (None,)))
    socket = context.socket(zmq.DEALER)
    _prepare(socket)
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity.encode())
    if is_encrypted:
        assert client_keys is not None
        assert config.server_public_key is not None
        socket.setsockopt(zmq.CURVE_PUBLICKEY, client_keys[0].encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, client_keys[1].encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, config.server_public_key.encode())
    socket.connect(config.endpoint)
    return socket

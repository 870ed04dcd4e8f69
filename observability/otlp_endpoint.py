"""Where a collector is and how it is talked to, from what a person writes. Imports nothing that is slow to load."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Literal
from urllib.parse import urlsplit

Protocol = Literal["grpc", "http/protobuf"]
Signal = Literal["traces", "metrics"]

HTTP_PORT: Final = 4318
_SCHEMES: Final = ("http", "https", "grpc", "grpcs")
_EXPORTERS: Final[dict[Protocol, str]] = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
}


class MissingExporter(Exception):
    """The package that sends by this protocol is not installed."""


@dataclass(frozen=True, slots=True)
class OtlpEndpoint:
    """``target``: host:port for gRPC, else the whole URL. ``is_secure``: TLS."""

    protocol: Protocol
    target: str
    is_secure: bool

    @classmethod
    def parse(cls, text: str, protocol: Literal["auto"] | Protocol, signal: Signal) -> "OtlpEndpoint":
        """``host:port`` or a URL; a URL without a path gets the one that collectors listen on (``/v1/traces``).

        ``auto`` is HTTP for a URL with a path and for port 4318, gRPC for anything else. Raises ValueError.
        """
        url = urlsplit(text if "://" in text else f"//{text}")
        if url.scheme and url.scheme not in _SCHEMES:
            raise ValueError(f"{text!r} must be host:port or a URL with one of {', '.join(_SCHEMES)}")
        if url.username is not None:  # it is not shown: a password may be in it
            raise ValueError("credentials do not belong in the URL: OTEL_EXPORTER_OTLP_HEADERS takes them")
        if not url.hostname or url.query or url.fragment:
            raise ValueError(f"{text!r} must be host:port, or a URL of scheme, host, port and path")
        has_path = url.path not in ("", "/")
        if protocol == "auto":
            is_http = not url.scheme.startswith("grpc") and (has_path or url.port == HTTP_PORT)
            protocol = "http/protobuf" if is_http else "grpc"
        if protocol == "grpc":
            if has_path or url.port is None:
                raise ValueError(f"{text!r} must have a port and no path for gRPC")
            return cls(protocol, url.netloc, url.scheme in ("https", "grpcs"))
        if url.scheme.startswith("grpc"):
            raise ValueError(f"{text!r} is no address for HTTP")
        path = url.path if has_path else f"/v1/{signal}"
        return cls(protocol, f"{url.scheme or 'http'}://{url.netloc}{path}", url.scheme == "https")

    def check_exporter(self) -> None:
        """Raises MissingExporter unless there is something to send with."""
        package = _EXPORTERS[self.protocol]
        try:
            is_there = find_spec(package) is not None
        except ModuleNotFoundError:  # a package above it
            is_there = False
        if not is_there:
            raise MissingExporter(f"{self.protocol} needs the package {package.replace('.', '-')}")

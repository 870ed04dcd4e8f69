"""Log lines as they come out, for people and for machines."""

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog

from observability.logging import configure, get_logger


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_has_one_object_a_line() -> None:
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    get_logger("gateway.app").info("engine ready", model="smollm2", seconds=1.5)
    (line,) = lines(stream)
    assert line.pop("timestamp")
    assert line == {
        "event": "engine ready", "model": "smollm2", "seconds": 1.5, "level": "info", "logger": "gateway.app"
    }  # fmt: skip


def test_console_lines_are_for_people_and_uncoloured_off_a_terminal() -> None:
    stream = io.StringIO()
    configure("info", stream=stream)
    get_logger("gateway.app").warning("cache folder is not writable", folder="/root")
    text = stream.getvalue()
    assert "cache folder is not writable" in text
    assert "folder=/root" in text
    assert "\x1b" not in text
    assert text.count("\n") == 1


def test_uvicorn_and_the_standard_library_come_the_same_way() -> None:
    stream = io.StringIO()
    logging.getLogger("uvicorn.error").addHandler(logging.NullHandler())
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    configure("info", json=True, stream=stream)
    logging.getLogger("uvicorn.error").warning("Started server process [%d]", 7, extra={"color_message": "again"})
    logging.getLogger("some.library").warning("look", extra={"size": 3})
    first, second = lines(stream)
    assert (first["event"], first["logger"]) == ("Started server process [7]", "uvicorn.error")
    assert "color_message" not in first
    assert (second["event"], second["logger"], second["size"]) == ("look", "some.library", 3)


def test_libraries_are_heard_from_warning_on_unless_debugging() -> None:
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    logging.getLogger("httpx").info("HTTP Request")
    get_logger("engine_core.core").debug("step")
    assert stream.getvalue() == ""
    configure("debug", json=True, stream=stream)
    logging.getLogger("httpx").info("HTTP Request")
    get_logger("engine_core.core").debug("step")
    assert [line["event"] for line in lines(stream)] == ["HTTP Request", "step"]


def test_configuring_twice_does_not_double_lines() -> None:
    stream = io.StringIO()
    for _ in range(2):
        configure("info", json=True, stream=stream)
    get_logger("octavo").error("once")
    assert len(lines(stream)) == 1


def test_an_exception_stays_on_its_json_line() -> None:
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        get_logger("octavo").exception("failed")
    (line,) = lines(stream)
    assert "RuntimeError: boom" in str(line["exception"])


def test_warnings_become_lines() -> None:
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (line,) = lines(stream)
    assert "old" in str(line["event"])


def test_an_unknown_level_is_an_error() -> None:
    with pytest.raises(KeyError):
        configure("loud")


def test_exporters_do_not_tell_of_each_batch_unless_debugging() -> None:
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").error("Failed to export")
    for _ in range(3):
        logging.getLogger("opentelemetry.sdk._shared_internal").warning("Queue full, dropping %s.", "Span")
    logging.getLogger("opentelemetry.sdk.trace.sampling").warning("no such sampler")
    assert [line["event"] for line in lines(stream)] == ["Queue full, dropping Span.", "no such sampler"]
    configure("debug", json=True, stream=stream)
    logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").error("Failed to export")
    assert lines(stream)[-1]["event"] == "Failed to export"
    configure("info", json=True, stream=stream)


def test_what_is_bound_to_a_request_is_on_its_lines() -> None:
    stream = io.StringIO()
    configure("info", json=True, stream=stream)
    with structlog.contextvars.bound_contextvars(request_id="r1", trace_id="t1"):
        get_logger("gateway.app").info("structlog's")
        logging.getLogger("some.library").warning("the standard library's")
    get_logger("gateway.app").info("later")
    assert [(line.get("request_id"), line.get("trace_id")) for line in lines(stream)] == [
        ("r1", "t1"),
        ("r1", "t1"),
        (None, None),
    ]

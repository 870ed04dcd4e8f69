"""Log lines on standard error: for people by default, as JSON when asked.

Everything goes one way: our own lines, uvicorn's and those of the libraries. Call ``configure`` once a process.
"""

import logging
import sys
from typing import TextIO

import structlog

OWN_PACKAGES = ("octavo", "gateway", "engine_core", "kernels", "ipc", "observability")
"""Lines of these appear from the level asked for; others are heard from ``warning``, or at ``debug``."""

EXPORTING = ("opentelemetry.exporter", "opentelemetry.sdk.metrics._internal.export")
"""These tell of each batch and each try that they lose: ``observability.otlp`` says it once. Heard at ``debug``."""

QUEUEING = "opentelemetry.sdk._shared_internal"
"""Tells of each span for which there is no room: heard once."""


def configure(level: str, *, json: bool = False, stream: TextIO | None = None) -> None:
    """``level`` is debug, info, warning or error. Colours appear on a terminal only. Calling again replaces."""
    stream = sys.stderr if stream is None else stream
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        _without_colour_copy,
        structlog.processors.TimeStamper(fmt="iso", utc=json),
        structlog.processors.StackInfoRenderer(),
    ]
    renderers: list[structlog.typing.Processor]
    if json:
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        renderers = [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    _route_stdlib(handler, logging.getLevelNamesMapping()[level.upper()])
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _route_stdlib(handler: logging.Handler, level: int) -> None:
    """One handler, on the root. Libraries that brought handlers of their own lose them."""
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))
    for name in OWN_PACKAGES:
        logging.getLogger(name).setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    for name in EXPORTING:
        logging.getLogger(name).setLevel(logging.NOTSET if level <= logging.DEBUG else logging.CRITICAL)
    queueing = logging.getLogger(QUEUEING)
    for before in [one for one in queueing.filters if isinstance(one, _Once)]:
        queueing.removeFilter(before)
    queueing.addFilter(_Once())
    logging.captureWarnings(True)


class _Once(logging.Filter):
    """Lets each text pass a first time."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[object] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        is_new = record.msg not in self._told
        self._told.add(record.msg)
        return is_new


def _without_colour_copy(
    logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """uvicorn attaches its message a second time, with escape codes."""
    event.pop("color_message", None)
    return event


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger of structlog's: ``log.info("engine ready", model=name)``. ``name`` is the module's."""
    return structlog.stdlib.get_logger(name)

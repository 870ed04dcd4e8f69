"""A gateway put together: what it knows of the model's text, and the application that it is. For whichever process."""

import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from starlette.types import ASGIApp

from gateway.app import create_app
from gateway.chat_parsers import ChatParsers
from gateway.desk import Desk
from gateway.engine_client import EngineClient
from gateway.state import GatewayState
from gateway.tenants import Tenants
from observability.metrics import Metrics
from octavo.options import ServeConfig
from octavo.telemetry import Telemetry
from octavo.text_parts import TextParts


def make_gateway(
    config: ServeConfig,
    folder: Path,
    client: EngineClient,
    desk: Desk,
    tenants: Tenants,
    metrics: Metrics,
    telemetry: Telemetry,
) -> ASGIApp:
    """Reads the model's folder. Raises ConfigError naming the file that is missing or broken."""
    gateway = config.gateway
    parts = TextParts.load(
        folder, template_file=gateway.chat_template, with_defaults=gateway.generation_config == "auto"
    )
    return create_app(
        GatewayState(
            config=gateway,
            model_names=config.model_names,
            client=client,
            desk=desk,
            tenants=tenants,
            tokenizer=parts.tokenizer,
            chat_template=parts.chat_template,
            chat_parsers=ChatParsers.choose(gateway.tool_call_parser, gateway.reasoning_parser, parts.chat_template),
            defaults=parts.defaults,
            metrics=metrics,
            tracing=telemetry.tracing,
            executor=ThreadPoolExecutor(2, thread_name_prefix="text"),
            created=int(time.time()),
            version=version("octavo"),
            max_logprobs=config.model_config.max_logprobs,
            accepts_priority=config.scheduler.looks_at_priority,
            observer=telemetry.metrics,
            captures_content=config.observability.otlp_capture_content,
            logs_requests=config.observability.enable_log_requests,
        )
    )

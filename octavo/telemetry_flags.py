"""What the flags about traces and metrics must mean. Loads nothing that sends."""

from ipc.config import ObservabilityConfig
from ipc.errors import ConfigError
from observability.otlp_endpoint import MissingExporter, OtlpEndpoint


def traces_endpoint(config: ObservabilityConfig) -> OtlpEndpoint | None:
    """Where traces go. Raises ConfigError naming the flag."""
    return _endpoint("--otlp-traces-endpoint", config.otlp_traces_endpoint, config, is_traces=True)


def metrics_endpoint(config: ObservabilityConfig) -> OtlpEndpoint | None:
    """Where metrics go beside ``/metrics``. Raises ConfigError naming the flag."""
    return _endpoint("--otlp-metrics-endpoint", config.otlp_metrics_endpoint, config, is_traces=False)


def check_observability(config: ObservabilityConfig) -> None:
    """Raises ConfigError naming the flag, and the extra if something is not installed."""
    traces_endpoint(config)
    metrics_endpoint(config)
    if config.otlp_capture_content and config.otlp_traces_endpoint is None:
        raise ConfigError("--otlp-capture-content: is about traces, which need --otlp-traces-endpoint")


def _endpoint(flag: str, text: str | None, config: ObservabilityConfig, *, is_traces: bool) -> OtlpEndpoint | None:
    if text is None:
        return None
    try:
        endpoint = OtlpEndpoint.parse(text, config.otlp_protocol, "traces" if is_traces else "metrics")
        endpoint.check_exporter()
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from None
    except MissingExporter as error:
        raise ConfigError(f"{flag}: {error}: pip install 'octavo[otel]'") from None
    return endpoint

"""What one gateway process sends to a collector. What sends is imported where there is one: it takes a while."""

import threading
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from ipc.config import ObservabilityConfig
from observability.otlp_endpoint import OtlpEndpoint
from observability.tracing import Tracing
from octavo.telemetry_flags import metrics_endpoint, traces_endpoint

if TYPE_CHECKING:
    from observability.gen_ai_metrics import GenAiMetrics


@dataclass(frozen=True, slots=True)
class Telemetry:
    """``metrics``: None if they go nowhere but to ``/metrics``."""

    tracing: Tracing
    metrics: "GenAiMetrics | None" = None

    @classmethod
    def of(cls, config: ObservabilityConfig) -> "Telemetry":
        """Raises ConfigError naming the flag."""
        traces, metrics = traces_endpoint(config), metrics_endpoint(config)
        return cls(_tracing(traces), None if metrics is None else _metrics(metrics))

    def shutdown(self) -> None:
        """Hand over what is still held. Takes a few seconds at most, whatever the collector does."""
        metrics = threading.Thread(target=self._shut_metrics_down, name="otlp-metrics-shutdown", daemon=True)
        metrics.start()
        self.tracing.shutdown()
        metrics.join()

    def _shut_metrics_down(self) -> None:
        if self.metrics is not None:
            self.metrics.shutdown()


def _tracing(endpoint: OtlpEndpoint | None) -> Tracing:
    if endpoint is None:
        return Tracing(None)
    from observability.otlp import span_exporter

    return Tracing(span_exporter(endpoint), service_version=version("octavo"))


def _metrics(endpoint: OtlpEndpoint) -> "GenAiMetrics":
    from observability.gen_ai_metrics import GenAiMetrics
    from observability.otlp import metric_exporter

    return GenAiMetrics(metric_exporter(endpoint), service_version=version("octavo"))

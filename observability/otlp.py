"""Sending to an OpenTelemetry collector, and saying once when that does not work.

The exporters are of the extra ``otel`` and imported when there is an endpoint. What they read of the environment
(headers, certificates, timeouts, compression: OTEL_EXPORTER_OTLP_*) is theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from observability.logging import get_logger
from observability.otlp_endpoint import OtlpEndpoint

log = get_logger("observability.otlp")


@dataclass(slots=True)
class Delivery:
    """Whether what is sent arrives. Only a change is told: not each batch that is lost while a collector is away."""

    signal: str
    target: str
    is_broken: bool = field(default=False)

    def note(self, *, arrived: bool) -> None:
        """One batch."""
        if arrived is not self.is_broken:
            return
        self.is_broken = not arrived
        if arrived:
            log.info("the OpenTelemetry collector takes data again", signal=self.signal, endpoint=self.target)
        else:
            log.warning(
                "the OpenTelemetry collector does not take data: it is lost until that works again",
                signal=self.signal,
                endpoint=self.target,
            )


class ToldSpanExporter(SpanExporter):
    """``exporter``, whose failures are told by ``delivery``."""

    def __init__(self, exporter: SpanExporter, delivery: Delivery) -> None:
        self._exporter, self._delivery = exporter, delivery

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """One batch, in the exporting thread."""
        result = self._exporter.export(spans)
        self._delivery.note(arrived=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Ends what is being tried, too."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held here."""
        return self._exporter.force_flush(timeout_millis)


class ToldMetricExporter(MetricExporter):
    """``exporter``, whose failures are told by ``delivery``."""

    def __init__(self, exporter: MetricExporter, delivery: Delivery) -> None:
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,
            preferred_aggregation=exporter._preferred_aggregation,
        )
        self._exporter, self._delivery = exporter, delivery

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        """All that was measured, in the exporting thread."""
        result = self._exporter.export(metrics_data, timeout_millis, **kwargs)
        self._delivery.note(arrived=result is MetricExportResult.SUCCESS)
        return result

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        """Ends what is being tried, too."""
        self._exporter.shutdown(timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is held here."""
        return self._exporter.force_flush(timeout_millis)


def span_exporter(endpoint: OtlpEndpoint) -> SpanExporter:
    """Sends spans there."""
    exporter: SpanExporter
    if endpoint.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter(endpoint=endpoint.target, insecure=not endpoint.is_secure)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        exporter = HttpExporter(endpoint=endpoint.target)
    return ToldSpanExporter(exporter, Delivery("traces", endpoint.target))


def metric_exporter(endpoint: OtlpEndpoint) -> MetricExporter:
    """Sends metrics there."""
    exporter: MetricExporter
    if endpoint.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        exporter = GrpcExporter(endpoint=endpoint.target, insecure=not endpoint.is_secure)
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

        exporter = HttpExporter(endpoint=endpoint.target)
    return ToldMetricExporter(exporter, Delivery("metrics", endpoint.target))

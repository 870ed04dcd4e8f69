"""The metrics of OpenTelemetry's gen_ai convention (v1.41.1), for a collector; ``/metrics`` has its own.

One thread observes; the reader, in a thread of its own, collects. Knows no exporter's kind.
"""

from typing import Final

from opentelemetry.metrics import Histogram, Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, PeriodicExportingMetricReader

from observability.gen_ai import PROVIDER, SCHEMA_URL, gen_ai_attributes
from observability.request_summary import RequestSummary
from observability.tracing import make_resource, shut_down

DURATION_BUCKETS: Final = tuple(0.01 * 2**power for power in range(14))
FIRST_TOKEN_BUCKETS: Final = (
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75) + (1.0, 2.5, 5.0, 7.5, 10.0)
)  # fmt: skip
PER_TOKEN_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_BUCKETS: Final = tuple(float(4**power) for power in range(14))


class GenAiMetrics:
    """Four histograms. Latencies of tokens are those of requests that ended well, as the convention has it."""

    def __init__(
        self,
        destination: MetricExporter | MetricReader,
        *,
        service_name: str = "octavo",
        service_version: str = "",
    ) -> None:
        """An exporter is fed every minute, or as OTEL_METRIC_EXPORT_INTERVAL says, by a thread of its own."""
        self._destination = destination
        reader = destination if isinstance(destination, MetricReader) else PeriodicExportingMetricReader(destination)
        self._provider = MeterProvider(
            [reader], resource=make_resource(service_name, service_version), shutdown_on_exit=False
        )
        meter = self._provider.get_meter("octavo", service_version, schema_url=SCHEMA_URL)
        self._duration = _histogram(
            meter, "gen_ai.server.request.duration", "s", "From arrival to the end.", DURATION_BUCKETS
        )
        self._first_token = _histogram(
            meter, "gen_ai.server.time_to_first_token", "s", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        self._per_token = _histogram(
            meter, "gen_ai.server.time_per_output_token", "s", "Mean after the first token.", PER_TOKEN_BUCKETS
        )
        self._tokens = _histogram(
            meter, "gen_ai.client.token.usage", "{token}", "Tokens of prompts and of outputs.", TOKEN_BUCKETS
        )

    def observe(self, request: RequestSummary) -> None:
        """Once a request, however it ended."""
        address, port = request.server or (None, None)
        common = gen_ai_attributes(
            {
                "operation": request.operation,
                "provider": PROVIDER,
                "model": request.model,
                "response_model": request.response_model,
                "server_address": address,
                "server_port": port,
            }
        )
        error = gen_ai_attributes({"error_type": request.error_type})
        self._duration.record(request.times.seconds, {**common, **error})
        if request.error_type is None:
            if request.first_token_seconds is not None:
                self._first_token.record(request.first_token_seconds, common)
            if request.seconds_per_output_token is not None:
                self._per_token.record(request.seconds_per_output_token, common)
        for token_type, count in (("input", request.num_prompt_tokens), ("output", request.num_generation_tokens)):
            self._tokens.record(count, {**common, **gen_ai_attributes({"token_type": token_type})})

    def shutdown(self) -> None:
        """Hand over what is still held, in a bounded time, and stop."""
        shut_down(self._provider.shutdown, self._destination.shutdown)


def _histogram(meter: Meter, name: str, unit: str, description: str, buckets: tuple[float, ...]) -> Histogram:
    return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)

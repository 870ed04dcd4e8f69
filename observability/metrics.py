"""Every metric, declared once, and what the gateway tells about requests.

Suffixes, labels and units are vLLM's, so that its dashboards work; buckets start lower. Written by one thread
(the gateway's event loop); must not know HTTP frameworks, the wire or the engine.
"""

import re
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest

from observability.engine_counters import EngineCounters
from observability.families import Families
from observability.instruments import (
    ENGINE_LABELS,
    FINISHED_REASONS,
    FIRST_TOKEN_BUCKETS,
    HTTP_BUCKETS,
    INTER_TOKEN_BUCKETS,
    PHASE_BUCKETS,
    REQUEST_TOKENS_BUCKETS,
    STAGES,
    STEP_TOKENS_BUCKETS,
    WAIT_REASONS,
    Instrument,
    Kind,
)
from observability.request_times import RequestTimes

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
BY_STAGE: Final = (*ENGINE_LABELS, "stage")
BY_REASON: Final = (*ENGINE_LABELS, "reason")
BY_FINISH: Final = (*ENGINE_LABELS, "finished_reason")

# fmt: off
INSTRUMENTS: Final = (
    # The engine's state, from its last report.
    Instrument("num_requests_running", GAUGE, "requests", "Requests in the batch.", source="num_running"),
    Instrument("num_requests_waiting", GAUGE, "requests", "Requests that wait for the engine.", source="num_waiting"),
    Instrument("num_requests_waiting_by_reason", GAUGE, "requests", "Waiting requests by what they wait for.",
               labels=BY_REASON, values=WAIT_REASONS),
    Instrument("kv_cache_usage_perc", GAUGE, "1", "Share of the KV blocks in use, 0 to 1."),
    # The engine's work, from its cumulative counters.
    Instrument("prompt_tokens_total", COUNTER, "tokens", "Prompt tokens.", source="prompt_tokens"),
    Instrument("generation_tokens_total", COUNTER, "tokens", "Generated tokens.", source="generation_tokens"),
    Instrument("prefix_cache_queries_total", COUNTER, "tokens", "Prompt tokens looked up in the prefix cache.",
               source="prefix_cache_queries"),
    Instrument("prefix_cache_hits_total", COUNTER, "tokens", "Prompt tokens found in the prefix cache.",
               source="prefix_cache_hits"),
    Instrument("num_preemptions_total", COUNTER, "requests", "Preemptions.", source="preemptions"),
    Instrument("steps_total", COUNTER, "steps", "Engine steps.", source="steps"),
    Instrument("step_seconds_total", COUNTER, "s", "Host time of the engine's loop by stage of the step.",
               labels=BY_STAGE, values=STAGES, source="{}_ns", scale=1e-9),
    Instrument("iteration_tokens_total", HISTOGRAM, "tokens", "Tokens computed in one engine step.",
               buckets=STEP_TOKENS_BUCKETS, source="step_tokens"),
    Instrument("engine_restarts_total", COUNTER, "restarts", "Engine processes that had to be started anew."),
    # Requests, as the gateway sees them.
    Instrument("request_success_total", COUNTER, "requests", "Ended requests by reason; a client that left is abort.",
               labels=BY_FINISH, values=FINISHED_REASONS),
    Instrument("time_to_first_token_seconds", HISTOGRAM, "s", "From arrival to the first token.",
               buckets=FIRST_TOKEN_BUCKETS),
    Instrument("inter_token_latency_seconds", HISTOGRAM, "s", "Between two outputs of a sequence.",
               buckets=INTER_TOKEN_BUCKETS),
    Instrument("e2e_request_latency_seconds", HISTOGRAM, "s", "From arrival to the end.", buckets=PHASE_BUCKETS),
    Instrument("request_queue_time_seconds", HISTOGRAM, "s", "In the queue until first admitted or given up.",
               buckets=PHASE_BUCKETS),
    Instrument("request_prefill_time_seconds", HISTOGRAM, "s", "From first admission to the first token.",
               buckets=PHASE_BUCKETS),
    Instrument("request_decode_time_seconds", HISTOGRAM, "s", "From the first to the last token.",
               buckets=PHASE_BUCKETS),
    Instrument("request_prompt_tokens", HISTOGRAM, "tokens", "Prompt tokens of a request.",
               buckets=REQUEST_TOKENS_BUCKETS),
    Instrument("request_generation_tokens", HISTOGRAM, "tokens", "Generated tokens of a request, all choices.",
               buckets=REQUEST_TOKENS_BUCKETS),
    # HTTP, under the names that every dashboard for Python servers uses.
    Instrument("http_requests_total", COUNTER, "requests", "HTTP requests by route, method and class of status.",
               labels=("handler", "method", "status"), is_prefixed=False),
    Instrument("http_request_duration_seconds", HISTOGRAM, "s", "From the request's head to the response's end.",
               labels=("handler", "method"), buckets=HTTP_BUCKETS, is_prefixed=False),
)
# fmt: on

_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """All metrics of one server. ``engine`` takes the reports of its engine."""

    def __init__(
        self,
        prefix: str = "octavo",
        *,
        model_name: str,
        engine: str = "0",
        registry: CollectorRegistry | None = None,
    ) -> None:
        """``prefix`` is without its colon; ``vllm`` makes vLLM's names. Raises ValueError if it cannot be a name.

        Without a ``registry`` a fresh one is made, which tells about this process too (process_*).
        """
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", prefix):
            raise ValueError(f"metrics prefix {prefix!r} must be letters, digits and underscores")
        families = self._families = Families(INSTRUMENTS, prefix, (model_name, engine))
        self._first_token = families.histogram("time_to_first_token_seconds")
        self._inter_token = families.histogram("inter_token_latency_seconds")
        self._latency = families.histogram("e2e_request_latency_seconds")
        self._phases = {
            phase: families.histogram(f"request_{phase}_time_seconds") for phase in ("queue", "prefill", "decode")
        }
        self._prompt_tokens = families.histogram("request_prompt_tokens")
        self._generation_tokens = families.histogram("request_generation_tokens")
        self._finished = {reason: families.value("request_success_total", reason) for reason in FINISHED_REASONS}
        self._restarts = families.value("engine_restarts_total")
        self.engine = EngineCounters(families, INSTRUMENTS)
        self._registry = CollectorRegistry() if registry is None else registry
        self._registry.register(families)
        if registry is None:
            ProcessCollector(registry=self._registry)

    def observe_first_token(self, seconds: float) -> None:
        """Once a request: from arrival to its first token."""
        self._first_token.observe(seconds)

    def observe_inter_token(self, seconds: float) -> None:
        """The time since the previous output of its sequence, for each output after the first."""
        self._inter_token.observe(seconds)

    def observe_request_end(
        self, finished_reason: str, times: RequestTimes, *, num_prompt_tokens: int, num_generation_tokens: int
    ) -> None:
        """Once a request, however it ended and however many choices it had. Raises KeyError on another reason."""
        self._finished[finished_reason].value += 1
        self._latency.observe(times.seconds)
        for phase in times.phases():
            self._phases[phase.name].observe(phase.seconds)
        self._prompt_tokens.observe(num_prompt_tokens)
        self._generation_tokens.observe(num_generation_tokens)

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """One HTTP exchange. ``handler`` is the route's template, never the path that a client made up."""
        method = method if method in _METHODS else "other"
        self._families.value("http_requests_total", handler, method, f"{status // 100}xx").value += 1
        self._families.histogram("http_request_duration_seconds", handler, method).observe(seconds)

    def count_engine_restart(self) -> None:
        """An engine process died or hung, and another was started in its place."""
        self._restarts.value += 1

    def render(self) -> bytes:
        """The text that ``/metrics`` answers, of type ``CONTENT_TYPE``."""
        return generate_latest(self._registry)

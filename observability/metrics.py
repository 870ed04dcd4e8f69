"""Every metric, declared once, and what the gateway tells about requests.

Suffixes, labels and units are vLLM's, so that its dashboards work; buckets start lower. Written by one thread
(the gateway's event loop); must not know HTTP frameworks, the wire or the engine.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest

from observability.engine_counters import EngineCounters
from observability.families import CellValues, Families
from observability.instruments import (
    CHOICES_BUCKETS,
    COPY_DIRECTIONS,
    DEADLINE_STAGES,
    ENGINE_LABELS,
    EVICTION_REASONS,
    FINISHED_REASONS,
    FIRST_TOKEN_BUCKETS,
    HTTP_BUCKETS,
    INTER_TOKEN_BUCKETS,
    KV_TIERS,
    LAG_BUCKETS,
    PHASE_BUCKETS,
    PREEMPTION_KINDS,
    PREEMPTIONS_BUCKETS,
    REFUSAL_REASONS,
    REQUEST_TOKENS_BUCKETS,
    STAGE_BUCKETS,
    STAGES,
    STEP_SEQUENCES_BUCKETS,
    STEP_TOKENS_BUCKETS,
    WAIT_REASONS,
    Instrument,
    Kind,
)
from observability.request_summary import RequestSummary

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
BY_STAGE: Final = (*ENGINE_LABELS, "stage")
BY_REASON: Final = (*ENGINE_LABELS, "reason")
BY_KIND: Final = (*ENGINE_LABELS, "kind")
BY_DIRECTION: Final = (*ENGINE_LABELS, "direction")
BY_TIER: Final = (*ENGINE_LABELS, "tier")
BY_TENANT: Final = (*ENGINE_LABELS, "tenant")
BY_FINISH: Final = (*ENGINE_LABELS, "finished_reason")

# fmt: off
INSTRUMENTS: Final = (
    # The engine's state, from its last report.
    Instrument("num_requests_running", GAUGE, "requests", "Requests in the batch.", source="num_running"),
    Instrument("num_requests_waiting", GAUGE, "requests", "Requests that wait for the engine.", source="num_waiting"),
    Instrument("num_requests_waiting_by_reason", GAUGE, "requests", "Waiting requests by what they wait for.",
               labels=BY_REASON, values=WAIT_REASONS),
    Instrument("kv_blocks", GAUGE, "blocks", "KV blocks of the device.", source="num_blocks"),
    Instrument("kv_blocks_free", GAUGE, "blocks", "KV blocks that no request holds.", source="num_free_blocks"),
    Instrument("kv_blocks_cached", GAUGE, "blocks", "KV blocks with a prefix that can be found, free or not.",
               source="num_cached_blocks"),
    Instrument("kv_block_evictions_total", COUNTER, "blocks", "Cached blocks that made room: of which tier.",
               labels=BY_REASON, values=EVICTION_REASONS, source="kv_evictions_{}"),
    Instrument("engine_cpu_seconds_total", COUNTER, "s", "Processor time of the engine process.", source="cpu_ns",
               scale=1e-9),
    Instrument("engine_resident_memory_bytes", GAUGE, "bytes", "Memory of the engine process.",
               source="memory_bytes"),
    Instrument("kv_cache_usage_perc", GAUGE, "1", "Share of the KV blocks in use, 0 to 1."),
    # The engine's work, from its cumulative counters.
    Instrument("prompt_tokens_total", COUNTER, "tokens", "Prompt tokens.", source="prompt_tokens"),
    Instrument("generation_tokens_total", COUNTER, "tokens", "Generated tokens.", source="generation_tokens"),
    Instrument("prefix_cache_queries_total", COUNTER, "tokens", "Prompt tokens looked up in the prefix cache.",
               source="prefix_cache_queries"),
    Instrument("prefix_cache_hits_total", COUNTER, "tokens", "Prompt tokens found in the prefix cache.",
               source="prefix_cache_hits"),
    Instrument("num_preemptions_total", COUNTER, "requests", "Preemptions.", source="preemptions"),
    Instrument("preemptions_by_kind_total", COUNTER, "requests", "Preemptions: KV kept on the host, or computed again.",
               labels=BY_KIND, values=PREEMPTION_KINDS, source="preemptions_{}"),
    Instrument("kv_blocks_copied_total", COUNTER, "blocks", "KV blocks copied out to the host and in again.",
               labels=BY_DIRECTION, values=COPY_DIRECTIONS, source="kv_blocks_{}"),
    Instrument("kv_tier_hits_total", COUNTER, "tokens", "Prompt tokens restored from a tier below the KV cache.",
               labels=BY_TIER, values=KV_TIERS, source="kv_hits_{}"),
    Instrument("kv_host_blocks", GAUGE, "blocks", "KV blocks that the host tier has room for.",
               source="num_host_blocks"),
    Instrument("kv_host_blocks_used", GAUGE, "blocks", "KV blocks in the host tier.", source="num_used_host_blocks"),
    Instrument("kv_disk_bytes", GAUGE, "bytes", "Size of the files of the disk tier.", source="kv_disk_bytes"),
    Instrument("kv_disk_corrupt_files_total", COUNTER, "files", "Files of the disk tier that were not as written.",
               source="kv_disk_corrupt_files"),
    Instrument("kv_disk_errors_total", COUNTER, "operations", "Reads and writes of the disk tier that failed.",
               source="kv_disk_errors"),
    Instrument("steps_total", COUNTER, "steps", "Engine steps.", source="steps"),
    Instrument("step_stage_seconds", HISTOGRAM, "s", "What a stage of the engine's loop took, by step.",
               labels=BY_STAGE, values=STAGES, buckets=STAGE_BUCKETS, source="{}_steps", sum_source="{}_ns",
               scale=1e-9),
    Instrument("iteration_tokens_total", HISTOGRAM, "tokens", "Tokens computed in one engine step.",
               buckets=STEP_TOKENS_BUCKETS, source="step_tokens", sum_source="step_tokens_sum"),
    Instrument("iteration_sequences", HISTOGRAM, "sequences", "Sequences in one engine step.",
               buckets=STEP_SEQUENCES_BUCKETS, source="step_sequences", sum_source="step_sequences_sum"),
    Instrument("engine_restarts_total", COUNTER, "restarts", "Engine processes that had to be started anew."),
    Instrument("resumed_requests_total", COUNTER, "requests", "Requests that went on in another engine process."),
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
    Instrument("request_inference_time_seconds", HISTOGRAM, "s", "From first admission to the last token.",
               buckets=PHASE_BUCKETS),
    Instrument("request_wait_time_seconds", HISTOGRAM, "s", "In the queue until first admitted, by what it waited for.",
               labels=BY_REASON, values=WAIT_REASONS, buckets=PHASE_BUCKETS),
    Instrument("request_time_per_output_token_seconds", HISTOGRAM, "s", "Mean of a request between two tokens.",
               buckets=INTER_TOKEN_BUCKETS),
    Instrument("request_prompt_tokens", HISTOGRAM, "tokens", "Prompt tokens of a request.",
               buckets=REQUEST_TOKENS_BUCKETS),
    Instrument("request_generation_tokens", HISTOGRAM, "tokens", "Generated tokens of a request, all choices.",
               buckets=REQUEST_TOKENS_BUCKETS),
    Instrument("request_max_num_generation_tokens", HISTOGRAM, "tokens", "Generated tokens of its longest choice.",
               buckets=REQUEST_TOKENS_BUCKETS),
    Instrument("request_params_n", HISTOGRAM, "choices", "Choices that a request asks for.", buckets=CHOICES_BUCKETS),
    Instrument("request_params_max_tokens", HISTOGRAM, "tokens", "Most tokens that a choice may have.",
               buckets=REQUEST_TOKENS_BUCKETS),
    Instrument("request_prefill_kv_computed_tokens", HISTOGRAM, "tokens", "Prompt tokens whose KV was not cached.",
               buckets=REQUEST_TOKENS_BUCKETS),
    Instrument("request_num_preemptions", HISTOGRAM, "preemptions", "Preemptions of a request, all choices.",
               buckets=PREEMPTIONS_BUCKETS),
    Instrument("prompt_tokens_cached_total", COUNTER, "tokens", "Prompt tokens whose KV was reused."),
    Instrument("deadline_misses_total", COUNTER, "requests", "Requests past their deadline, by how far they were.",
               labels=BY_STAGE, values=DEADLINE_STAGES),
    # Admission.
    Instrument("requests_refused_total", COUNTER, "requests", "Requests that were told to come again, by reason.",
               labels=BY_REASON, values=REFUSAL_REASONS),
    Instrument("num_requests_in_flight", GAUGE, "requests", "Admitted requests, waiting or running; n counts n."),
    Instrument("num_queued_tokens", GAUGE, "tokens", "Prompt tokens of requests without a first token, estimated."),
    Instrument("predicted_queue_wait_seconds", GAUGE, "s", "What a short request that comes now would wait."),
    Instrument("num_requests_expected", GAUGE, "requests", "Refused requests whose time to come again is not over."),
    # Tenants: what each has used. At most a hundred have a label of their own.
    Instrument("tenant_requests_total", COUNTER, "requests", "Requests that have ended.", labels=BY_TENANT),
    Instrument("tenant_prompt_tokens_total", COUNTER, "tokens", "Prompt tokens.", labels=BY_TENANT),
    Instrument("tenant_cached_tokens_total", COUNTER, "tokens", "Prompt tokens whose KV was reused.", labels=BY_TENANT),
    Instrument("tenant_generation_tokens_total", COUNTER, "tokens", "Generated tokens.", labels=BY_TENANT),
    Instrument("tenant_device_seconds_total", COUNTER, "s", "Share of the engine's time.", labels=BY_TENANT),
    Instrument("tenant_kv_block_seconds_total", COUNTER, "s", "KV blocks held, by time.", labels=BY_TENANT),
    # The gateway's process; of several, all together.
    Instrument("gateway_event_loop_lag_seconds", HISTOGRAM, "s", "How late the event loop ran what was due.",
               buckets=LAG_BUCKETS),
    Instrument("gateway_connections", GAUGE, "connections", "Open HTTP connections."),
    Instrument("gateway_buffered_bytes", GAUGE, "bytes", "What is written and not read by its client yet."),
    Instrument("gateway_cpu_seconds_total", COUNTER, "s", "Processor time of the gateway process."),
    Instrument("gateway_resident_memory_bytes", GAUGE, "bytes", "Memory of the gateway process."),
    # HTTP, under the names that every dashboard for Python servers uses.
    Instrument("http_requests_total", COUNTER, "requests", "HTTP requests by route, method and class of status.",
               labels=("handler", "method", "status"), is_prefixed=False),
    Instrument("http_request_duration_seconds", HISTOGRAM, "s", "From the request's head to the response's end.",
               labels=("handler", "method"), buckets=HTTP_BUCKETS, is_prefixed=False),
)
# fmt: on

_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class TenantUsage(Protocol):
    """What a tenant has used, cumulative."""

    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    device_ns: int
    kv_block_ns: int


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
        self._prefix, self._own_labels = prefix, (model_name, engine)
        families = self._families = Families(INSTRUMENTS, prefix, self._own_labels)
        self._first_token = families.histogram("time_to_first_token_seconds")
        self._inter_token = families.histogram("inter_token_latency_seconds")
        self._latency = families.histogram("e2e_request_latency_seconds")
        self._phases = {
            phase: families.histogram(f"request_{phase}_time_seconds") for phase in ("queue", "prefill", "decode")
        }
        self._inference = families.histogram("request_inference_time_seconds")
        self._waits = {reason: families.histogram("request_wait_time_seconds", reason) for reason in WAIT_REASONS}
        self._per_token = families.histogram("request_time_per_output_token_seconds")
        self._prompt_tokens = families.histogram("request_prompt_tokens")
        self._computed_tokens = families.histogram("request_prefill_kv_computed_tokens")
        self._cached_tokens = families.value("prompt_tokens_cached_total")
        self._generation_tokens = families.histogram("request_generation_tokens")
        self._longest_output = families.histogram("request_max_num_generation_tokens")
        self._params_n = families.histogram("request_params_n")
        self._params_max_tokens = families.histogram("request_params_max_tokens")
        self._preemptions = families.histogram("request_num_preemptions")
        self._missed = {stage: families.value("deadline_misses_total", stage) for stage in DEADLINE_STAGES}
        self._finished = {reason: families.value("request_success_total", reason) for reason in FINISHED_REASONS}
        self._restarts = families.value("engine_restarts_total")
        self._resumed = families.value("resumed_requests_total")
        self._refused = {reason: families.value("requests_refused_total", reason) for reason in REFUSAL_REASONS}
        self._in_flight = families.value("num_requests_in_flight")
        self._queued_tokens = families.value("num_queued_tokens")
        self._queue_wait = families.value("predicted_queue_wait_seconds")
        self._expected = families.value("num_requests_expected")
        self._loop_lag = families.histogram("gateway_event_loop_lag_seconds")
        self.engine = EngineCounters(families, INSTRUMENTS)
        self._process: CollectorRegistry | None = None
        self._registry = CollectorRegistry() if registry is None else registry
        self._registry.register(families)
        if registry is None:
            self._process = CollectorRegistry()
            ProcessCollector(registry=self._process)

    def observe_first_token(self, seconds: float) -> None:
        """Once a request: from arrival to its first token."""
        self._first_token.observe(seconds)

    def observe_inter_token(self, seconds: float) -> None:
        """The time since the previous output of its sequence, for each output after the first."""
        self._inter_token.observe(seconds)

    def observe_request_end(self, request: RequestSummary) -> None:
        """Once a request, however it ended and however many choices it had. Raises KeyError on a reason that is not in
        the table."""
        self._finished[request.finished_reason].value += 1
        times = request.times
        self._latency.observe(times.seconds)
        for phase in times.phases():
            self._phases[phase.name].observe(phase.seconds)
        for reason, seconds in times.waits().items():
            self._waits[reason].observe(seconds)
        if (inference := times.inference_seconds) is not None:
            self._inference.observe(inference)
        if (per_token := request.seconds_per_output_token) is not None:
            self._per_token.observe(per_token)
        self._prompt_tokens.observe(request.num_prompt_tokens)
        if times.first_token_ns is not None:
            self._cached_tokens.value += request.num_cached_tokens
            self._computed_tokens.observe(request.num_prompt_tokens - request.num_cached_tokens)
        self._generation_tokens.observe(request.num_generation_tokens)
        self._longest_output.observe(request.longest_output)
        self._params_n.observe(request.n)
        if request.max_tokens is not None:
            self._params_max_tokens.observe(request.max_tokens)
        self._preemptions.observe(request.num_preemptions)
        if (stage := request.deadline_stage) is not None:
            self._missed[stage].value += 1

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """One HTTP exchange. ``handler`` is the route's template, never the path that a client made up."""
        method = method if method in _METHODS else "other"
        self._families.value("http_requests_total", handler, method, f"{status // 100}xx").value += 1
        self._families.histogram("http_request_duration_seconds", handler, method).observe(seconds)

    def observe_event_loop_lag(self, seconds: float) -> None:
        """How late a timer of the gateway's loop went off."""
        self._loop_lag.observe(seconds)

    def set_gateway(
        self, *, num_connections: int, num_buffered_bytes: int, cpu_seconds: float, memory_bytes: int
    ) -> None:
        """This process as it is."""
        value = self._families.value
        value("gateway_connections").value = num_connections
        value("gateway_buffered_bytes").value = num_buffered_bytes
        value("gateway_cpu_seconds_total").value = cpu_seconds
        value("gateway_resident_memory_bytes").value = memory_bytes

    def count_refusal(self, reason: str) -> None:
        """A request was told to come again. Raises KeyError on a reason that is not in the table."""
        self._refused[reason].value += 1

    def set_tenant_usage(self, label: str, usage: TenantUsage) -> None:
        """What the tenants under that label have used since the start. The caller bounds the number of labels."""
        for name, value in (
            ("tenant_requests_total", usage.num_requests),
            ("tenant_prompt_tokens_total", usage.prompt_tokens),
            ("tenant_cached_tokens_total", usage.cached_tokens),
            ("tenant_generation_tokens_total", usage.output_tokens),
            ("tenant_device_seconds_total", usage.device_ns * 1e-9),
            ("tenant_kv_block_seconds_total", usage.kv_block_ns * 1e-9),
        ):
            self._families.value(name, label).value = value

    def set_admission(
        self, *, num_sequences: int, num_queued_tokens: float, wait_seconds: float, num_booked: int
    ) -> None:
        """The queue as it is."""
        self._in_flight.value, self._queued_tokens.value = num_sequences, num_queued_tokens
        self._queue_wait.value, self._expected.value = wait_seconds, num_booked

    def count_engine_restart(self, incarnation: int) -> None:
        """The engine process of that number died or hung, and another takes its place."""
        self.engine.end(incarnation)
        self._restarts.value += 1

    def count_resumed_requests(self, total: int) -> None:
        """How many requests have gone on in another engine process so far; one counts each time."""
        self._resumed.value = total

    def cell_values(self) -> tuple[CellValues, ...]:
        """What was counted here, for ``render`` or ``add`` in another process."""
        return self._families.cell_values()

    def add(self, values: Iterable[CellValues]) -> None:
        """What a process had counted that is no more. Its gauges are no more, either."""
        self._families.add(values, has_ended=True)

    def render(self, others: Sequence[Iterable[CellValues]] = ()) -> bytes:
        """The text that ``/metrics`` answers, of type ``CONTENT_TYPE``, with what ``others`` have counted added up."""
        registry = self._registry
        if others:
            families = Families(INSTRUMENTS, self._prefix, self._own_labels)
            for values in (self._families.cell_values(), *others):
                families.add(values)
            registry = CollectorRegistry()
            registry.register(families)
        process = b"" if self._process is None else generate_latest(self._process)
        return generate_latest(registry) + process

"""The configuration tree: frozen structs with ranges and help texts, from which the flags are made.

A component gets its own part of the tree. Derived values are functions elsewhere; nothing here is changed
after it is built. ``None`` means "chosen at start-up", and the help text says how.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine loads and in which arithmetic."""

    model: Annotated[str, Meta(description="Model folder: config.json, safetensors, tokenizer.json.")]
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="Arithmetic of the linears, and of the KV cache unless said otherwise; auto: bfloat16."),
    ] = "auto"
    quantization: Annotated[
        Literal["int8", "int4", "fp8"] | None,
        Meta(
            description="Quantize all linears at load: int8; int4 in groups of 32 inputs with the head in int8 (CPU "
            "only); fp8 (GPUs of compute capability 9.0 up, or the reference kernels); default: as the checkpoint is."
        ),
    ] = None
    load_format: Annotated[
        Literal["auto", "dummy"], Meta(description="dummy: random weights of the config's shapes, no weight file read.")
    ] = "auto"
    max_model_len: Annotated[
        int | None, Meta(description="Longest prompt plus output in tokens; default: what the model's config says.")
    ] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="auto: cuda where there is one, else cpu.")] = (
        "auto"
    )
    batch_invariant: Annotated[
        bool,
        Meta(
            description="On a GPU, too, the same request gets the same tokens whatever is in the batch with it, by "
            "kernels that add in one order; slower. On CPU it is always so."
        ),
    ] = False
    enforce_eager: Annotated[
        bool,
        Meta(description="No CUDA graphs: every step launches its kernels one by one; slower, for finding faults."),
    ] = False
    cudagraph_capture_sizes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=65536)], ...],
        Meta(
            description="Numbers of decoding sequences for which a CUDA graph is captured when first needed; steps are "
            "filled up to the next one. Default: 1, 2, 4, then by 8 to 256, then by 16 to 512."
        ),
    ] = ()
    cpu_threads: Annotated[
        int | None, Meta(description="Threads of the CPU kernels; default: all that affinity and the cgroup allow.")
    ] = None
    seed: Annotated[
        int,
        Meta(
            ge=0,
            le=2**63 - 1,
            description="Seed of dummy weights; a request without a seed of its own gets a random one.",
        ),
    ] = 0
    max_logprobs: Annotated[int, Meta(ge=0, le=1000, description="Most top_logprobs that one request may ask for.")] = (
        20
    )


class CacheConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The KV cache."""

    block_size: Annotated[Literal[16, 32, 64, 128], Meta(description="Tokens in one KV block.")] = 16
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8", "fp8"],
        Meta(
            description="Numbers in the KV cache; int8 and fp8 (e4m3; GPUs of compute capability 9.0 up, or the "
            "reference kernels): with a scale for each token and KV head; auto: as --dtype."
        ),
    ] = "auto"
    num_kv_blocks: Annotated[
        int | None, Meta(description="Number of KV blocks; default: from the memory settings below.")
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None,
        Meta(
            description="Memory for the KV cache; default: on CPU a quarter of what is free, at most 4 GiB, on a GPU "
            "what --gpu-memory-utilization leaves."
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Share of the GPU memory that is free at start-up for weights, the largest step and KV cache.",
        ),
    ] = 0.9
    enable_prefix_caching: Annotated[bool, Meta(description="Reuse the KV of prompts with the same beginning.")] = True
    preemption_mode: Annotated[
        Literal["auto", "recompute", "swap"],
        Meta(
            description="What becomes of the KV of a request that is preempted: copied to host memory (swap), computed "
            "again (recompute), or what costs less by what was timed at start-up."
        ),
    ] = "auto"
    kv_host_memory_bytes: Annotated[
        int,
        Meta(
            ge=0, description="Host memory for what the KV cache has no room for: evicted prefixes, swapped requests."
        ),
    ] = 0
    kv_disk_path: Annotated[
        str | None,
        Meta(description="Folder to which that memory's prefixes are written too, and where they are after a restart."),
    ] = None
    kv_disk_bytes: Annotated[int | None, Meta(description="Most bytes of files in that folder; default: 8 GiB.")] = None


POLICIES_WITHOUT_PRIORITY = frozenset({"fcfs", "short_first", "long_first", "deadline", "fair"})


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sequences run in a step."""

    max_num_seqs: Annotated[int, Meta(ge=1, le=65536, description="Most sequences in one step.")] = 128
    max_num_batched_tokens: Annotated[
        int | None,
        Meta(
            description="Token budget of a step; default: 2048, and of prompts no more than keeps a step within "
            "twice what its decodes take (250 ms where nobody decodes), by steps timed at start-up."
        ),
    ] = None
    scheduling_policy: Annotated[
        str,
        Meta(
            description="Order of the waiting requests: fcfs, priority, short-first, long-first, deadline (least slack "
            "first), fair (by tenant), or one of another package's (entry point octavo.policy)."
        ),
    ] = "fcfs"
    async_scheduling: Annotated[
        bool | None,
        Meta(description="Schedule the next step while one runs; default: on a GPU, not on CPU."),
    ] = None

    @property
    def looks_at_priority(self) -> bool:
        """Whether a request's priority has an effect. Of another package's policy that is not known: it may."""
        return self.scheduling_policy.replace("-", "_") not in POLICIES_WITHOUT_PRIORITY


class FaultConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done when an engine dies or hangs."""

    engine_max_restarts: Annotated[
        int,
        Meta(ge=0, le=1000, description="Engines started anew in ten minutes before the server gives up; 0: none."),
    ] = 3
    engine_heartbeat_timeout: Annotated[
        float, Meta(gt=0, le=3600, description="Seconds without progress after which an engine counts as hung.")
    ] = 10.0
    engine_start_timeout: Annotated[
        float, Meta(gt=0, le=86400, description="Seconds that an engine may take until it serves.")
    ] = 1800.0


class StructuredOutputConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Grammars that outputs must follow."""

    grammar_backend: Annotated[
        str, Meta(description="What compiles JSON schemas, regexes and grammars: llguidance, or xgrammar (an extra).")
    ] = "llguidance"
    grammar_timeout: Annotated[
        float, Meta(gt=0, le=600, description="Seconds that compiling one grammar may take.")
    ] = 5.0


class ObservabilityConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server tells about requests: traces, metrics and log lines."""

    otlp_traces_endpoint: Annotated[
        str | None,
        Meta(description="Send traces to this OpenTelemetry collector: host:port or a URL; default: no traces."),
    ] = None
    otlp_metrics_endpoint: Annotated[
        str | None,
        Meta(description="Send the metrics of OpenTelemetry's gen_ai convention there; /metrics is there anyway."),
    ] = None
    otlp_protocol: Annotated[
        Literal["auto", "grpc", "http/protobuf"],
        Meta(description="How to talk to it; auto: http/protobuf for a URL with a path or port 4318, else grpc."),
    ] = "auto"
    otlp_capture_content: Annotated[bool, Meta(description="Traces hold the text of prompts and answers, too.")] = False
    metrics_prefix: Annotated[
        str,
        Meta(
            pattern="^[a-zA-Z_][a-zA-Z0-9_]*$",
            description="What the names in /metrics begin with; vllm: for dashboards made for vLLM.",
        ),
    ] = "octavo"
    log_format: Annotated[LogFormat, Meta(description="Log lines for people or, one object a line, for machines.")] = (
        "console"
    )
    enable_log_requests: Annotated[
        bool, Meta(description="A log line when a request is taken and one when it ends, without any of its text.")
    ] = False


class ProfileConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Profiles of the engine."""

    profile_dir: Annotated[
        str | None,
        Meta(description="Folder that profiles of the engine are written to; default: none can be made."),
    ] = None
    profile_step: Annotated[
        int | None, Meta(description="Profile this step, counted from 1, of the first engine; needs --profile-dir.")
    ] = None


class TransportConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an engine incarnation listens. CURVE keys are Z85 text and only for tcp."""

    endpoint: str
    incarnation: int = 0
    server_secret_key: str | None = None
    server_public_key: str | None = None


class EngineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that ``python -m engine_core`` is told, as one line of JSON on its standard input."""

    model: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    structured_output: StructuredOutputConfig = StructuredOutputConfig()
    profile: ProfileConfig = ProfileConfig()
    transport: TransportConfig
    journal: str | None = None  # file that says whose step runs; it does not exist yet
    step_seconds: tuple[float, ...] = ()  # floor, row, sequence, context, as timed by an engine before this one
    log_level: LogLevel = "info"
    log_format: LogFormat = "console"


Scope = Literal["inference", "metrics", "admin"]


class TenantConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use the server, and how much of it: one entry of ``--api-keys-file``. ``keys``: SHA-256 of each key, in
    hexadecimal."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$")]
    keys: Annotated[tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")], ...], Meta(min_length=1)]
    weight: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    tokens_per_minute: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    concurrent_requests: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    priority_cap: int | None = None
    scopes: tuple[Scope, ...] = ("inference",)


class GatewayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP side."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0: any free one.")] = 8000
    api_server_count: Annotated[
        int,
        Meta(ge=1, le=256, description="Gateway processes on that port; 1: it is the server's own process."),
    ] = 1
    uds: Annotated[str | None, Meta(description="Listen on this Unix socket instead of host and port.")] = None
    served_model_name: Annotated[
        tuple[str, ...], Meta(description="Names that clients may use as model; default: MODEL as given.")
    ] = ()
    api_key: Annotated[
        tuple[str, ...], Meta(description="Clients must send one of these as Bearer token; repeatable.")
    ] = ()
    api_key_file: Annotated[
        str | None, Meta(description="File with such keys, one a line; blank and # lines do not count.")
    ] = None
    api_keys_file: Annotated[
        str | None, Meta(description="TOML file with tenants: hashes of their keys, weights, limits and scopes.")
    ] = None
    chat_template: Annotated[
        str | None, Meta(description="File with a chat template to use instead of the model's.")
    ] = None
    trust_request_chat_template: Annotated[
        bool, Meta(description="Requests may bring a chat_template; it runs apart, bounded in time and memory.")
    ] = False
    tool_call_parser: Annotated[
        str,
        Meta(
            description="How the model writes tool calls: hermes, llama3_json, mistral, qwen, pythonic, json; auto: "
            "what its chat template says, none: tool calls stay text."
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Meta(
            description="How the model marks its reasoning: think, qwen3, deepseek_r1, granite, magistral; auto: what "
            "its chat template says, none: reasoning stays text."
        ),
    ] = "auto"
    generation_config: Annotated[
        Literal["auto", "none"],
        Meta(description="auto: defaults of sampling parameters from generation_config.json; none: octavo's own."),
    ] = "auto"
    max_num_queued_reqs: Annotated[
        int,
        Meta(ge=1, description="Most requests waiting and running, n counting n; others are told when to come again."),
    ] = 256
    max_num_queued_tokens: Annotated[
        int, Meta(ge=1, description="Most prompt tokens of requests that wait for their first token, by estimate.")
    ] = 262_144
    max_queue_wait: Annotated[
        float, Meta(gt=0, description="Longest wait for the first token, in seconds and as predicted.")
    ] = 60.0
    ssl_certfile: Annotated[str | None, Meta(description="Serve HTTPS with this certificate chain (PEM).")] = None
    ssl_keyfile: Annotated[
        str | None, Meta(description="Its private key (PEM, not encrypted), unless it is in the same file.")
    ] = None
    ssl_ca_certs: Annotated[str | None, Meta(description="CA certificates (PEM) that clients' are checked by.")] = None
    ssl_cert_reqs: Annotated[
        Literal["none", "optional", "required"], Meta(description="Whether clients must show a certificate.")
    ] = "none"
    allowed_origins: Annotated[
        tuple[str, ...], Meta(description="Origins whose pages may call the API (CORS); * for all; repeatable.")
    ] = ()
    allowed_methods: Annotated[tuple[str, ...], Meta(description="Methods that they may use.")] = ("*",)
    allowed_headers: Annotated[tuple[str, ...], Meta(description="Request headers that they may send.")] = ("*",)
    allow_credentials: Annotated[bool, Meta(description="They may send cookies.")] = False
    max_header_bytes: Annotated[
        int, Meta(ge=1024, description="Longest request line and headers together, in bytes.")
    ] = 64 * 1024
    slow_client_timeout: Annotated[
        float, Meta(gt=0, description="Seconds after which a client that leaves a response unread is cut off.")
    ] = 60.0
    sse_keep_alive_interval: Annotated[
        float, Meta(ge=0, description="Seconds of silence after which a stream sends a comment; 0: never.")
    ] = 15.0
    max_request_bytes: Annotated[int, Meta(ge=1024, description="Largest request body in bytes.")] = 32 * 1024 * 1024
    shutdown_timeout: Annotated[
        float, Meta(ge=0, description="Seconds that running requests get to finish after SIGTERM.")
    ] = 30.0
    log_level: Annotated[LogLevel, Meta(description="Least important log lines shown.")] = "info"

"""The wire between gateways and engines (design 2): tagged array-like structs, fields only appended.

Token ids travel packed (codec.pack_ids). Times are CLOCK_MONOTONIC nanoseconds of the sender; ``Ready``
carries a pair of clocks so that another host's times can be placed.
"""

from enum import IntEnum

import msgspec

from ipc.params import BeamParams, SamplingParams

PROTOCOL = 1


class FinishReason(IntEnum):
    """Why a sequence ended. ``name.lower()`` is what clients and metrics see."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    DEADLINE = 4


class EventKind(IntEnum):
    """What happened to a request in the engine; the value's meaning is in brackets."""

    QUEUED = 0
    ADMITTED = 1  # [choice]
    BLOCKED = 2  # [WaitReason]
    CACHE_HIT = 3  # [tokens]
    CHUNK = 4  # [tokens]
    PREEMPTED = 5  # [request id of the one that got the blocks]; its own are computed again
    RESUMED = 6  # [tokens restored]
    GRAMMAR_READY = 7
    PREEMPTED_BY_SWAP = 8  # [as PREEMPTED]; its blocks are kept on the host
    RESTARTED = 9  # queued in an engine that came in another's place; made by the gateway


class WaitReason(IntEnum):
    """Why a request waited (contract 4)."""

    TOKEN_BUDGET = 0
    KV_BLOCKS = 1
    SEQUENCE_SLOTS = 2
    POLICY = 3
    GRAMMAR = 4
    ADAPTER = 5
    FORK = 6  # a choice that waits for its request's prompt
    KV_DISK = 7  # blocks of the prompt are being read


Event = tuple[int, int, int]
"""(EventKind, time_ns, value)"""

WaitingRequest = tuple[int, int, int]
"""(request id, WaitReason, time_ns since when)"""

MOST_WAITING_REQUESTS = 256
"""In one report: those that came first."""


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Log-probabilities of t tokens in a row, packed little-endian.

    ``logprobs`` f32 [t]; ``ranks`` u32 [t] (1 is the most likely); ``top_ids`` u32 [t, k] and
    ``top_logprobs`` f32 [t, k], most likely first.
    """

    num_top: int
    logprobs: bytes
    ranks: bytes
    top_ids: bytes = b""
    top_logprobs: bytes = b""


# ---- gateway to engine


class Hello(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=1):
    """The first message of a gateway; answered by ``Ready`` as soon as the model is loaded."""

    protocol: int


class Add(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=2):
    """One request. ``choices`` are (index, packed output ids): the ids are empty unless it is resumed."""

    request_id: int  # u64, the gateway's own
    arrival_ns: int
    model: str
    prompt_ids: bytes
    params: SamplingParams
    choices: tuple[tuple[int, bytes], ...] = ((0, b""),)
    adapter: str = ""
    num_prompt_logprobs: int = -1
    grammar: tuple[str, str] | None = None  # (kind, source)
    cache_salt: str = ""
    priority: int = 0  # lower is first
    tenant: str = ""
    weight: float = 1.0
    deadline_ns: int = 0  # 0: none
    is_resumed: bool = False
    traceparent: str = ""
    beam: BeamParams | None = None  # of ``params`` only max_tokens, ends and num_logprobs count then
    visit: int = 0  # of the desk that let it in, for whoever passes it on; the engine does not look at it
    client_id: str = ""  # X-Request-Id of the exchange, for whoever looks at a server; nor at this


class Finish(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=3):
    """The gateway found a stop string: the choice ends after ``num_tokens`` output tokens."""

    request_id: int
    choice: int
    reason: int
    num_tokens: int


class Abort(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=4):
    """The client is gone. Answered, like ``Finish``, by the last output of each choice."""

    request_id: int


class Drain(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=5):
    """Take no new requests; end the process when the last one is done."""


class Profile(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=6):
    """``action``: start or stop. Answered by ``Profiled``, the stop when the files are written."""

    number: int  # of the question, the gateway's own
    action: str
    num_steps: int = 0  # after which it ends by itself; 0: as many as there may be


# ---- engine to gateway


class Ready(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=16):
    """The model is loaded. ``num_token_ids``: ids from there on have no token (``vocab_size`` rows may)."""

    protocol: int
    incarnation: int
    numerics_id: str
    model_digest: str
    vocab_size: int
    num_token_ids: int
    max_model_len: int
    block_size: int
    num_blocks: int
    monotonic_ns: int
    wall_ns: int
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    step_seconds: tuple[float, ...] = ()  # floor, row, sequence, context of engine_core.step_cost

    @property
    def max_sequence_len(self) -> int:
        """The longest sequence, prompt and output, that one request can have: the context or the whole pool."""
        return min(self.max_model_len, self.num_blocks * self.block_size + 1)


class Accepted(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=17):
    """The request is in the queue. Response headers are sent after this."""

    request_id: int


class Refused(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=18):
    """Not now: the queue is full. ``retry_after_ms`` is what the client is told."""

    request_id: int
    reason: str
    retry_after_ms: int


class Failed(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=19):
    """The request (``choice`` −1) or one choice of it ended in an error. ``code`` is machine-readable."""

    request_id: int
    choice: int
    code: str
    message: str


class Output(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What one step did for one choice. Several tokens at once are normal."""

    request_id: int
    choice: int
    token_ids: bytes
    logprobs: TokenLogprobs | None = None
    finish: int | None = None  # FinishReason
    stop_token_id: int | None = None  # which of the request's own stop ids ended it
    events: tuple[Event, ...] = ()
    num_cached_tokens: int = 0
    prompt_logprobs: TokenLogprobs | None = None  # positions 1 … prompt − 1, sent once
    device_ns: int = 0  # with ``finish``: the choice's share of the steps' time
    kv_block_ns: int = 0  # with ``finish``: KV blocks held × time


class Outputs(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=20):
    """One message a step and gateway. ``time_ns``: when the step's tokens were known."""

    incarnation: int
    time_ns: int
    outputs: tuple[Output, ...]


class Beat(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=21):
    """Liveness, every 200 ms from the io thread: the counters move while there is progress."""

    incarnation: int
    num_loops: int
    num_layers: int
    time_ns: int
    step_ns: int = 0  # what the last step launched was expected to take; 0: not known


class Stats(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=22):
    """Gauges and cumulative counters of one incarnation; at most every 250 ms and on going idle."""

    incarnation: int
    time_ns: int
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0  # tokens
    prefix_cache_hits: int = 0  # tokens
    preemptions: int = 0
    steps: int = 0
    schedule_ns: int = 0
    launch_ns: int = 0
    wait_ns: int = 0
    commit_ns: int = 0
    step_tokens: tuple[int, ...] = ()  # histogram: steps per bucket of STEP_TOKEN_BUCKETS, then the rest
    step_tokens_sum: int = 0
    waiting_by_reason: tuple[tuple[int, int], ...] = ()  # (WaitReason, requests)
    preemptions_swap: int = 0
    preemptions_recompute: int = 0
    kv_blocks_out: int = 0  # copied from the device to the host
    kv_blocks_in: int = 0
    kv_hits_host: int = 0  # tokens of prompts that were copied from there instead of computed
    kv_hits_disk: int = 0
    num_host_blocks: int = 0
    num_used_host_blocks: int = 0
    kv_disk_bytes: int = 0
    kv_disk_corrupt_files: int = 0
    kv_disk_errors: int = 0
    step_sequences: tuple[int, ...] = ()  # steps per bucket of STEP_SEQUENCE_BUCKETS, then the rest
    step_sequences_sum: int = 0
    schedule_steps: tuple[int, ...] = ()  # steps per bucket of STAGE_NS_BUCKETS, then the rest; the sum is schedule_ns
    launch_steps: tuple[int, ...] = ()
    wait_steps: tuple[int, ...] = ()
    commit_steps: tuple[int, ...] = ()
    kv_evictions_device_full: int = 0  # blocks with a prefix that were given new contents
    cpu_ns: int = 0  # of the process
    memory_bytes: int = 0  # resident
    waiting_requests: tuple[WaitingRequest, ...] = ()  # of which no choice runs
    kv_evictions_host_full: int = 0  # likewise; of the disk: files that made room
    kv_evictions_disk_full: int = 0


class Profiled(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=23):
    """A profile has begun, and ends after so many steps or seconds at the latest; or was written, and had so many."""

    number: int
    code: str = ""  # of an error: no_profile_dir, conflict or failed
    error: str = ""  # for people
    files: tuple[str, ...] = ()
    num_steps: int = 0
    seconds: float = 0.0


MOST_PROFILED_STEPS = 1000
"""In one profile: some hundred operations each, and 250 bytes or so for each of them."""

STEP_SEQUENCE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STAGE_NS_BUCKETS = tuple(digit * 10**power for power in range(4, 10) for digit in (1, 2, 5))  # 10 us to 5 s
STEP_TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

ToEngine = Hello | Add | Finish | Abort | Drain | Profile
ToGateway = Ready | Accepted | Refused | Failed | Outputs | Beat | Stats | Profiled

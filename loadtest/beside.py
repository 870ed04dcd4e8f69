"""What a long prompt does to streams that are already running: their inter-token times with it and without it.

Times count from the moment when every stream has its first token until the first of them ends: beginning streams
compute prompts, too, and would hide what the long one does.
"""

import asyncio
import random
import statistics
from dataclasses import dataclass

from loadtest.client import Completion, complete
from loadtest.compare import Workload, check
from loadtest.figures import percentile


@dataclass(frozen=True, slots=True)
class StreamRound:
    """Seconds between the streams' events: median and 99th percentile; the latter also of the time in which the long
    prompt was computed, and that time. NaN where there was no long prompt."""

    gap: float
    gap_p99: float
    gap_p99_beside: float
    first_token: float


async def run_streams(
    url: str, workload: Workload, num_beside_tokens: int, seed: int, api_key: str | None
) -> StreamRound:
    """``workload.concurrency`` streams, a request each, and a prompt of ``num_beside_tokens`` (0: none) among them.

    Raises RuntimeError when a request fails, or when a stream ends before that prompt is computed.
    """
    draw, all_begun, num_begun = random.Random(seed), asyncio.Event(), 0
    loop_prompts = [workload.prompt(draw) for _ in range(workload.concurrency)]
    long_prompt = workload.prompt(draw, num_beside_tokens) if num_beside_tokens else []

    def begin() -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == workload.concurrency:
            all_begun.set()

    async def arrive_later() -> Completion | None:
        await all_begun.wait()
        return await complete(url, workload.body(long_prompt, 1), api_key) if long_prompt else None

    arriving = asyncio.create_task(arrive_later())
    streams = await asyncio.gather(*(complete(url, workload.body(ids), api_key, begin) for ids in loop_prompts))
    if not all_begun.is_set():
        arriving.cancel()
    check(url, streams)
    return summarize(url, streams, await arriving)


def summarize(url: str, streams: list[Completion], beside: Completion | None) -> StreamRound:
    """Of one run. Raises RuntimeError where the streams were too short to show anything."""
    begun = max(stream.event_times[0] for stream in streams)
    ended = min(stream.event_times[-1] for stream in streams)
    during: list[float] = []
    first_token = float("nan")
    if beside is not None:
        check(url, [beside])
        first_token = beside.first_token
        if (computed := beside.started + first_token) > ended:
            raise RuntimeError(f"{url}: a stream ended before the long prompt was computed: let them be longer")
        during = [gap for stream in streams for gap in stream.gaps_between(beside.started, computed)]
    gaps = [gap for stream in streams for gap in stream.gaps_between(begun, ended)]
    if not gaps:
        raise RuntimeError(f"{url}: the first stream ended before the last began: let them be longer")
    return StreamRound(statistics.median(gaps), percentile(gaps, 0.99), percentile(during, 0.99), first_token)

"""Sends ``Stats`` to the gateways: at most every 250 ms, and at once on going idle."""

import time

from engine_core.channel import Channel
from engine_core.core import EngineCore
from ipc.messages import Stats
from observability.process import resident_bytes

INTERVAL_SECONDS = 0.25
CHECK_SECONDS = 10.0  # the integrity check walks all blocks: some milliseconds


def snapshot(core: EngineCore, incarnation: int) -> Stats:
    """Gauges as they are now, counters since the incarnation began."""
    scheduler, times = core.scheduler, core.times
    pool, counters, tiers = scheduler.kv.pool, scheduler.counters, scheduler.kv.tiers.use()
    return Stats(
        incarnation=incarnation,
        time_ns=time.monotonic_ns(),
        num_running=len(scheduler.running),
        num_waiting=core.num_waiting,
        num_blocks=pool.num_blocks,
        num_free_blocks=pool.num_free,
        num_cached_blocks=len(scheduler.kv.prefix_cache),
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
        prefix_cache_queries=counters.prefix_cache_queries,
        prefix_cache_hits=counters.prefix_cache_hits,
        preemptions=counters.preemptions,
        steps=times.num_steps,
        schedule_ns=times.schedule.total_ns,
        launch_ns=times.launch.total_ns,
        wait_ns=times.wait.total_ns,
        commit_ns=times.commit.total_ns,
        step_tokens=tuple(times.steps_by_tokens),
        step_tokens_sum=times.num_tokens,
        preemptions_swap=counters.preemptions_by_swap,
        preemptions_recompute=counters.preemptions - counters.preemptions_by_swap,
        kv_blocks_out=tiers.blocks_out,
        kv_blocks_in=tiers.blocks_in,
        kv_hits_host=tiers.host_hit_tokens,
        kv_hits_disk=tiers.disk_hit_tokens,
        num_host_blocks=tiers.num_host_blocks,
        num_used_host_blocks=tiers.num_used_host_blocks,
        kv_disk_bytes=tiers.disk_bytes,
        kv_disk_corrupt_files=tiers.corrupt_files,
        kv_disk_errors=tiers.disk_errors,
        step_sequences=tuple(times.steps_by_sequences),
        step_sequences_sum=times.num_sequences,
        schedule_steps=tuple(times.schedule.steps),
        launch_steps=tuple(times.launch.steps),
        wait_steps=tuple(times.wait.steps),
        commit_steps=tuple(times.commit.steps),
        kv_evictions_device_full=scheduler.kv.num_evicted,
        kv_evictions_host_full=tiers.host_evictions,
        kv_evictions_disk_full=tiers.disk_evictions,
        cpu_ns=time.process_time_ns(),
        memory_bytes=resident_bytes(),
        waiting_requests=core.waiting_requests(),
        waiting_by_reason=tuple((int(reason), count) for reason, count in core.waiting_by_reason().items()),
    )


class StatsReporter:
    """Called after each turn of the loop."""

    def __init__(self, channel: Channel, incarnation: int) -> None:
        self._channel, self._incarnation = channel, incarnation
        self._next = self._next_check = 0.0

    def on_step(self, core: EngineCore) -> None:
        """Broadcast when it is time. An idle engine is checked for lost blocks and slots now and then."""
        now = time.monotonic()
        if core.is_idle:
            if now >= self._next_check:
                self._next_check = now + CHECK_SECONDS
                core.scheduler.check_integrity()
        elif now < self._next:
            return
        self._next = now + INTERVAL_SECONDS
        self._channel.broadcast(snapshot(core, self._incarnation))

import random

import msgspec
import pytest

from gateway.admission_rates import AverageWork, BytesPerToken, EngineSpeed, OutputLengths, StepSeconds, Work
from ipc.messages import Ready, Stats

STEPS = StepSeconds(floor=0.01, row=0.001, sequence=0.0005)


def reports(
    prefill: float, rows: float, sequences: float, *, kinds: str = "pdm", most: int = 30, count: int = 200
) -> list[Stats]:
    """Of an engine that is so much slower than ``STEPS``: prompts alone, decodes alone, or both."""
    rng = random.Random(3)
    found, prompt, generated, steps, busy, num_rows = [], 0, 0, 0, 0.0, 0
    for index in range(count):
        kind = kinds[index % len(kinds)]
        num_prefilled = rng.randint(50, 300) if kind != "d" else 0
        num_steps = rng.randint(2, 20)
        num_decoded = num_steps * rng.randint(1, most) if kind != "p" else 0
        busy += prefill * num_prefilled * STEPS.row + sequences * num_decoded * STEPS.sequence
        busy += rows * num_steps * STEPS.rows(num_decoded / num_steps)
        prompt, generated, steps = prompt + num_prefilled, generated + num_decoded, steps + num_steps
        num_rows += num_prefilled + num_decoded
        found.append(
            Stats(
                1,
                0,
                prompt_tokens=prompt,
                generation_tokens=generated,
                steps=steps,
                wait_ns=int(busy * 1e9),
                step_tokens_sum=num_rows,
            )
        )
    return found


@pytest.mark.parametrize("factors", [(1.0, 1.0, 1.0), (2.0, 0.5, 1.0), (0.4, 3.0, 2.0), (1.0, 1.0, 3.0)])
def test_what_each_part_takes_is_learned(factors: tuple[float, float, float]) -> None:
    speed = EngineSpeed(STEPS)
    for stats in reports(*factors):
        speed.observe(stats)
    assert speed.factors == pytest.approx(factors, rel=0.2)
    assert speed.prefill_seconds(100) == pytest.approx(factors[0] * 0.1, rel=0.15)
    expected = factors[1] * 0.02 + factors[2] * 20 * 0.0005
    assert speed.decode_seconds(20) == pytest.approx(expected, rel=0.1)


def test_a_machine_that_is_slow_at_times() -> None:
    speed = EngineSpeed(STEPS)
    for stats in reports(1.0, 1.0, 1.0):
        speed.observe(stats)
    assert speed.slowest < 1.1
    last = reports(1.0, 1.0, 1.0)[-1]
    busy = last.wait_ns
    for index in range(20):
        busy += 500_000_000  # twice of what 25 steps of 15 ms should take
        steps = last.steps + 16 * (index + 1)
        speed.observe(msgspec.structs.replace(last, steps=steps, wait_ns=busy))
    assert 1.2 < speed.slowest <= 3


def test_decodes_alone_say_nothing_of_prompts() -> None:
    speed = EngineSpeed(STEPS)
    for stats in reports(1.0, 2.0, 2.0, kinds="d"):
        speed.observe(stats)
    assert speed.factors == pytest.approx((1.0, 2.0, 2.0), rel=0.1)


def test_a_single_sequence_says_little_of_many() -> None:
    """What was not seen stays as the engine timed it."""
    speed = EngineSpeed(STEPS)
    for stats in reports(1.0, 1.0, 1.0, kinds="d", most=1):
        speed.observe(stats)
    assert speed.decode_seconds(30) == pytest.approx(0.03 + 0.015, rel=0.1)


def test_idle_reports_and_other_incarnations() -> None:
    speed = EngineSpeed(STEPS)
    for stats in reports(1.0, 2.0, 2.0):
        speed.observe(stats)
        speed.observe(stats)
    before = speed.decode_seconds(10)
    speed.observe(Stats(2, 0, generation_tokens=10, steps=10, wait_ns=10**8, step_tokens_sum=10))
    assert speed.decode_seconds(10) == pytest.approx(before, rel=0.3)


def test_the_engines_own_timing_is_where_it_begins() -> None:
    ready = Ready(1, 0, "n", "d", 100, 100, 4096, 16, 4096, 0, 0, 4, 256, (0.5, 0.25, 0.125))
    speed = EngineSpeed()
    speed.start(ready)
    assert speed.decode_seconds(1) == 0.5 + 0.125
    assert speed.decode_seconds(4) == 1.0 + 0.5
    assert speed.prefill_seconds(2) == 0.5


def test_hits_in_the_prefix_cache_make_prompts_cheap() -> None:
    speed = EngineSpeed(STEPS)
    speed.observe(Stats(1, 0, steps=1, wait_ns=1, prefix_cache_queries=1000, prefix_cache_hits=750))
    assert speed.prefill_seconds(100) == pytest.approx(0.025, rel=0.01)


def test_output_lengths_with_limits() -> None:
    """Outputs of 100 tokens on average, most of them cut off at 50: the estimate is not fooled."""
    lengths, rng = OutputLengths(), random.Random(5)
    for _ in range(5000):
        length = int(rng.expovariate(1 / 100)) + 1
        lengths.observe(min(length, 50), int(length <= 50))
    assert lengths.expected(1e6) == pytest.approx(100, rel=0.15)
    assert lengths.expected(50) == pytest.approx(100 * (1 - 0.6065), rel=0.15)
    assert lengths.expected(50, ends_by_itself=False) == 50
    assert lengths.expected(0) == 0


def test_outputs_that_never_end_by_themselves() -> None:
    lengths = OutputLengths()
    for _ in range(1000):
        lengths.observe(500, 0)
    assert lengths.expected(500) == pytest.approx(500, rel=0.01)


def test_bytes_per_token_follow_the_traffic() -> None:
    sizes = BytesPerToken()
    assert sizes.tokens(4000) == 1000
    assert sizes.tokens(0) == 1
    for _ in range(2000):
        sizes.observe(3000, 3000)
    assert sizes.tokens(4000) == pytest.approx(4000, rel=0.02)


def test_average_work() -> None:
    average = AverageWork()
    for _ in range(200):
        average.observe(Work(2, 100.0, 30.0))
    assert average.prompt_tokens == pytest.approx(50, rel=0.05)
    assert average.output_tokens == pytest.approx(30, rel=0.05)

"""How fast steps go, learned from when they were made: what prompts and outputs take on this machine as it is loaded.

Averages that follow within some twenty steps. Knows no policy.
"""

from collections.abc import Mapping

from engine_core.sequence import Sequence
from engine_core.step import ScheduledSequence

GAIN = 0.1
MIN_STEPS = 8  # of a kind, before it says anything: the first ones are no rule


class Pace:
    """Told of every step. Times are nanoseconds."""

    def __init__(self) -> None:
        self._step_ns = self._row_ns = 0.0  # a step of decodes; a row of one with prompts
        self._num_decode_steps = self._num_prompt_steps = 0
        self._last_ns = self._last_rows = 0
        self._had_prompts = False

    def on_step(self, now_ns: int, scheduled: Mapping[Sequence, ScheduledSequence]) -> None:
        """A step was made, perhaps an empty one: the time since the one before is that one's."""
        if self._last_rows:
            self._learn(now_ns - self._last_ns)
        self._last_ns = now_ns
        self._last_rows = sum(entry.num_tokens for entry in scheduled.values())
        self._had_prompts = self._last_rows > len(scheduled)

    def _learn(self, elapsed_ns: int) -> None:
        if self._had_prompts:
            self._num_prompt_steps += 1
            gain = max(GAIN, 1 / self._num_prompt_steps)
            self._row_ns += gain * (elapsed_ns / self._last_rows - self._row_ns)
        else:
            self._num_decode_steps += 1
            gain = max(GAIN, 1 / self._num_decode_steps)
            self._step_ns += gain * (elapsed_ns - self._step_ns)

    def nanoseconds(self, num_to_compute: int, num_output_tokens: int) -> int:
        """What known tokens and then output take; 0 for what was not measured often enough. The last of the known ones
        is computed in the step that draws the first of the output."""
        rows_ns = self._row_ns * (num_to_compute - 1) if self._num_prompt_steps >= MIN_STEPS else 0.0
        steps_ns = self._step_ns * num_output_tokens if self._num_decode_steps >= MIN_STEPS else 0.0
        return round(rows_ns + steps_ns)

"""Is the client itself too slow? Then its figures are not the server's.

A loop that wants to wake up every 10 ms notes how late it does: as late as every answer that arrives meanwhile is read.
"""

import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.figures import percentile
from loadtest.mix.record import now

INTERVAL = 0.01


@dataclass(slots=True)
class Health:
    """Of one client process. ``lateness`` in seconds, one for every interval, by ``times``; CPU and wall seconds."""

    times: "array[float]" = field(default_factory=lambda: array("d"))
    lateness: "array[float]" = field(default_factory=lambda: array("f"))
    cpu: float = 0.0
    wall: float = 0.0

    def note(self, due: float, moment: float) -> float:
        """A wake-up at ``moment`` that was due at ``due``; when the next one is. One that comes late by several
        intervals is late for each of them, or else a client that stands still would look well."""
        while due <= moment:
            self.times.append(due)
            self.lateness.append(moment - due)
            due += INTERVAL
        return due

    def watch(self, is_over: Callable[[], bool]) -> None:
        """Until it is."""
        due, wall, cpu = now() + INTERVAL, now(), cpu_seconds()
        while not is_over():
            time.sleep(max(0.0, due - now()))
            due = self.note(due, now())
            self.cpu += (cpu_now := cpu_seconds()) - cpu
            self.wall += (wall_now := now()) - wall
            cpu, wall = cpu_now, wall_now

    @property
    def lag_p99(self) -> float:
        """Seconds; NaN before there is any."""
        return percentile(self.lateness, 0.99)

    @property
    def cpu_share(self) -> float:
        """Of one core, which is all that a client process can use."""
        return self.cpu / self.wall if self.wall else 0.0

    def take(self) -> "Health":
        """What was noted so far, and begins anew."""
        taken = Health(self.times, self.lateness, self.cpu, self.wall)
        self.clear()
        return taken

    def clear(self) -> None:
        """Forget."""
        self.times, self.lateness, self.cpu, self.wall = array("d"), array("f"), 0.0, 0.0

    def add(self, other: "Health") -> None:
        """What the same client noted later."""
        self.times.extend(other.times)
        self.lateness.extend(other.lateness)
        self.cpu += other.cpu
        self.wall += other.wall

    def to_wire(self) -> tuple[bytes, bytes, float, float]:
        """For another process."""
        return self.times.tobytes(), self.lateness.tobytes(), self.cpu, self.wall

    @classmethod
    def from_wire(cls, values: tuple[bytes, bytes, float, float]) -> "Health":
        """What ``to_wire`` made."""
        times, lateness, cpu, wall = values
        return cls(array("d", times), array("f", lateness), cpu, wall)


def cpu_seconds() -> float:
    """Of this process, so far."""
    used = os.times()
    return used.user + used.system

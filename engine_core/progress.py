"""How far an engine has come: two counters that move while there is progress (design 8)."""

from typing import NamedTuple, Protocol


class HowFar(NamedTuple):
    """Turns of the loop and layers of the model done so far; ``step_ns``: what the last step launched was expected to
    take, 0 if that is not known."""

    num_loops: int = 0
    num_layers: int = 0
    step_ns: int = 0


class CountsLoops(Protocol):
    """The busy loop."""

    num_loops: int

    @property
    def expected_step_ns(self) -> int: ...


class CountsLayers(Protocol):
    """The runner."""

    @property
    def num_layers_done(self) -> int: ...


class Progress:
    """Read by the socket thread for each beat; zeros until the model is loaded."""

    def __init__(self) -> None:
        self._loops: CountsLoops | None = None
        self._layers: CountsLayers | None = None

    def watch(self, loops: CountsLoops, layers: CountsLayers) -> None:
        """The engine is built."""
        self._loops, self._layers = loops, layers

    def __call__(self) -> HowFar:
        if self._loops is None or self._layers is None:
            return HowFar()
        return HowFar(self._loops.num_loops, self._layers.num_layers_done, self._loops.expected_step_ns)

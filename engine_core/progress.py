"""How far an engine has come: two counters that move while there is progress (design 8)."""

from typing import Protocol


class CountsLoops(Protocol):
    """The busy loop."""

    num_loops: int


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

    def __call__(self) -> tuple[int, int]:
        if self._loops is None or self._layers is None:
            return (0, 0)
        return (self._loops.num_loops, self._layers.num_layers_done)

"""Whether the packages that run are ours: ``kernels`` is also the name of a package that others install."""

from importlib.util import find_spec
from pathlib import Path

from ipc.errors import ConfigError


def check_kernels_package() -> None:
    """Raises ConfigError when ``import kernels`` would find a package that is not octavo's."""
    spec, ours = find_spec("kernels"), find_spec("engine_core")
    assert ours is not None
    assert ours.origin is not None
    expected = Path(ours.origin).parent.parent / "kernels"
    found = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if found != expected or not (expected / "ops.py").is_file():
        raise ConfigError(
            f"the package 'kernels' at {found} is not octavo's: another package of that name is installed "
            "beside it (pip uninstall kernels, then install octavo again)"
        )

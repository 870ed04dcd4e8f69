"""The pins of the clients' environment: all that pyproject.toml asks for, at one version."""

import tomllib

from clients_tree import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    found = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(package): version for package, version in found}


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    here = pins("constraints-clients.txt")
    assert "torch" not in here
    for text in project["optional-dependencies"]["clients"]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(here[name])

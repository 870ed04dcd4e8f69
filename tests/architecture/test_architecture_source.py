"""Rules of the house that the source itself shows."""

import ast
import tomllib
from collections.abc import Iterator

import pytest
from architecture_tree import PACKAGES, ROOT, Source, sources
from setuptools import find_packages

# Where a process or a connection ends: whatever happens inside is reported there instead of killing the rest.
PROCESS_EDGES = {
    "octavo/cli.py",
    "octavo/start_up.py",
    "gateway/event_pump.py",
    "gateway/middleware.py",
    "gateway/streaming.py",
    "engine_core/__main__.py",
    "engine_core/io.py",
    "engine_core/models/gguf.py",
    "engine_core/structured_output/pool.py",
}
CODE_FROM_DATA = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
# Variables that belong to the system or to a library, with a meaning that users know.
FOREIGN_VARIABLES = {
    "HOME",
    "OMP_WAIT_POLICY",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "TMPDIR",
    "CUDA_VISIBLE_DEVICES",
    "TRITON_INTERPRET",
}


def test_kernels_is_an_empty_package() -> None:
    # transformers probes for a package of this name: ours must not look like the other one.
    assert (ROOT / "kernels" / "__init__.py").read_bytes() == b""


def test_every_module_says_what_it_is() -> None:
    silent = [s.name for s in sources() if not s.name.endswith("__init__.py") and not ast.get_docstring(s.tree)]
    assert silent == []


def test_no_drawers_for_everything() -> None:
    assert [s.name for s in sources() if s.name.rpartition("/")[2] in ("utils.py", "helpers.py", "misc.py")] == []
    classes = (node for s in sources() for node in ast.walk(s.tree) if isinstance(node, ast.ClassDef))
    assert [node.name for node in classes if node.name.startswith("Base")] == []


def test_data_never_becomes_code() -> None:
    assert [(s.name, found) for s in sources() if (found := s.imports() & CODE_FROM_DATA)] == []
    assert [(s.name, found) for s in sources() if (found := list(code_from_data(s)))] == []


def code_from_data(source: Source) -> Iterator[str]:
    calls = (ast.unparse(node.func) for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    return (called for called in calls if called in ("eval", "exec", "compile", "torch.load"))


def test_only_process_edges_catch_everything() -> None:
    found = {(source.name, node.lineno) for source in sources() for node in broad_handlers(source)}
    assert {(name, line) for name, line in found if name not in PROCESS_EDGES} == set()


def broad_handlers(source: Source) -> Iterator[ast.ExceptHandler]:
    """Handlers of every exception that do not end in ``raise``; cleaning up or translating is no swallowing."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler) or isinstance(node.body[-1], ast.Raise):
            continue
        caught = {"BaseException"} if node.type is None else {ast.unparse(part) for part in exception_types(node.type)}
        if caught & {"Exception", "BaseException"}:
            yield node


def exception_types(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def test_there_are_no_environment_variables_of_our_own() -> None:
    found = {(source.name, name) for source in sources() for name in variables_read(source)}
    assert {(source, name) for source, name in found if name not in FOREIGN_VARIABLES} == set()
    named = [
        (source.name, node.value)
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("OCTAVO_")
    ]
    macros = ("OCTAVO_ISA", "OCTAVO_DISPATCH_WITH_AMX")  # of the C++ sources
    assert named == [("kernels/native/build.py", macro) for macro in macros]


def variables_read(source: Source) -> Iterator[str]:
    """Names given to os.environ[...], os.environ.get(...) and os.getenv(...); an unnamed one counts as ``?``."""
    for node in ast.walk(source.tree):
        argument: ast.expr | None = None
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("os.environ", "environ"):
            argument = node.slice
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "os.getenv",
            "getenv",
            "os.environ.get",
            "environ.get",
            "os.environ.setdefault",
        ):
            argument = node.args[0]
        if argument is not None:
            yield str(argument.value) if isinstance(argument, ast.Constant) else "?"


@pytest.mark.parametrize("code", ["eval(text)", "x = [exec(a)]", "torch.load(path)"])
def test_the_rules_see_code_from_data(code: str) -> None:
    assert list(code_from_data(Source("m.py", ast.parse(code))))
    assert not list(code_from_data(Source("m.py", ast.parse("model.eval(); re.compile(a)"))))


@pytest.mark.parametrize(
    ("clause", "is_broad"),
    [
        ("except: pass", True),
        ("except Exception as e: log(e)", True),
        ("except (ValueError, BaseException): pass", True),
        ("except ValueError: pass", False),
        ("except Exception: raise", False),
    ],
)
def test_the_rules_see_broad_handlers(clause: str, is_broad: bool) -> None:
    assert bool(list(broad_handlers(Source("m.py", ast.parse(f"try: a()\n{clause}"))))) is is_broad


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("os.environ['A']", ["A"]),
        ("os.environ.get('B', '')", ["B"]),
        ("os.getenv(name)", ["?"]),
        ("run(env=os.environ)", []),
    ],
)
def test_the_rules_see_variables(code: str, names: list[str]) -> None:
    assert list(variables_read(Source("m.py", ast.parse(code)))) == names


def test_the_wheel_has_the_packages_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packaged = set(find_packages(str(ROOT), include=project["tool"]["setuptools"]["packages"]["find"]["include"]))
    folders = {source.name.rpartition("/")[0].replace("/", ".") for source in sources()}
    assert packaged == folders
    assert {name.partition(".")[0] for name in packaged} == set(PACKAGES)


def test_every_requirement_is_pinned() -> None:
    """The clients have constraints of their own, for an environment of their own."""
    pins, clients = pins_of("constraints.txt"), pins_of("constraints-clients.txt")
    assert "+" not in pins["torch"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {requirement_name(text) for text in extras["clients"]} <= set(clients)
    others = [text for name, extra in extras.items() if name != "clients" for text in extra]
    names = {requirement_name(text) for text in [*project["dependencies"], *others]}
    assert names - {"octavo"} <= set(pins)


def pins_of(name: str) -> dict[str, str]:
    """Version by package."""
    lines = (ROOT / name).read_text().splitlines()
    found = [line.split("==") for line in lines if not line.startswith("#")]
    return {requirement_name(package): version for package, version in found}


def requirement_name(text: str) -> str:
    """``PyYAML>=6`` → ``pyyaml``, as PyPI compares names."""
    name = "".join(character if character.isalnum() or character in "-_." else " " for character in text).split()[0]
    return name.lower().replace("_", "-").replace(".", "-")

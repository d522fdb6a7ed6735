"""House rules, read from the source: who may import whom, and how long things may be."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("coordinator", "draft_worker", "target_worker")
PACKAGES = (*SERVICES, "tandem")
IMPURE = {"grpc", "ray", "asyncio", "transformers", "yaml", "logging", "time", "random", "threading"}
POOR_NAMES = {"manager", "helper", "helpers", "utils", "util", "handler", "handlers"}

# Where protobuf types may be seen: the codecs, the two ends of a worker's calls, the public servicer, and the client.
# Beyond these they are the types of tandem/core/types.py.
PROTOBUF_FILES = {
    "tandem/client/codec.py",
    "tandem/rpc/link.py",
    "tandem/rpc/worker_service.py",
    "coordinator/service.py",
}
PROTOBUF_FOLDERS = ("tandem/rpc/codec/", "tandem/cli/")

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 80
USUAL_FUNCTION_LINES = 40

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*packages: str) -> list[Path]:
    found = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return [path for path in found if "tandem/v1" not in path.as_posix()]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Full dotted names of what a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_roots(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imports(path)}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield f"{name(path)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("package", PACKAGES)
def test_services_never_import_one_another(package: str) -> None:
    strangers = set(SERVICES) - {package}
    assert not {name(path): found for path in sources(package) if (found := imported_roots(path) & strangers)}


def test_core_is_pure() -> None:
    core = sources("tandem/core")
    assert core
    assert not {name(path): found for path in core if (found := imported_roots(path) & IMPURE)}


def test_core_stands_alone() -> None:
    """What decides must not depend on what waits, computes or talks."""
    beyond = {
        name(path): module
        for path in sources("tandem/core")
        for module in imports(path)
        if module.startswith("tandem.") and not module.startswith("tandem.core")
    }
    assert not beyond


def test_protobuf_types_stop_at_the_codec() -> None:
    leaks = [
        name(path)
        for path in sources(*PACKAGES)
        if any(module.endswith("_pb2") and module.startswith("tandem.v1") for module in imports(path))
    ]
    assert not [leak for leak in leaks if leak not in PROTOBUF_FILES and not leak.startswith(PROTOBUF_FOLDERS)]


def test_files_are_short() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in sources(*PACKAGES)}
    assert not {file: length for file, length in lengths.items() if length >= MAX_FILE_LINES}


def test_functions_are_short() -> None:
    lengths = [found for path in sources(*PACKAGES) for found in functions(path)]
    longer = [found for found in lengths if found[1] >= USUAL_FUNCTION_LINES]
    assert not [found for found in longer if found[1] > MAX_FUNCTION_LINES]
    assert len(longer) <= 0.05 * len(lengths), longer


def test_nothing_prints() -> None:
    """Results go to a console of tandem.cli, events to the log."""
    prints = [
        f"{name(path)}:{node.lineno}"
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints


def test_files_are_named_for_what_they_hold() -> None:
    assert not [name(path) for path in sources(*PACKAGES) if POOR_NAMES & set(path.stem.split("_"))]

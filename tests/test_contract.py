"""The generated code is what the protos say, and the protos keep their own rules."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROTOS = sorted((ROOT / "protos" / "tandem" / "v1").glob("*.proto"))
COMMITTED = ROOT / "tandem" / "v1"

# Any patch release of the compiler writes the same code under another version.
VERSION = re.compile(
    r"^GRPC_GENERATED_VERSION = .*$|^# Protobuf Python Version: .*$|(?<=ValidateProtobufRuntimeVersion\()[^']*", re.M
)


def normal(path: Path) -> str:
    return VERSION.sub("", path.read_text())


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}", *outputs, *map(str, PROTOS)]
    subprocess.run(command, check=True, timeout=60)
    written = {path.name: normal(path) for path in (tmp_path / "tandem" / "v1").iterdir()}
    committed = {path.name: normal(path) for path in COMMITTED.glob("*_pb2*.py*")}
    assert committed == written, "run `make protos`"


def test_protos_pass_lint() -> None:
    buf = Path(sys.executable).with_name("buf")
    result = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr

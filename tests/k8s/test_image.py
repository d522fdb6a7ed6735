"""The image, built by its own Dockerfile on a base that is made here, and run as its pods run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s.manifests import ROOT

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(1800)]

PACKAGES = ("coordinator", "draft_worker", "target_worker", "tandem")
PARTS = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", *PACKAGES)
BASE = "docker.io/library/python:3.11-slim"
# runc, and limits that need no capability: crun would raise them. The host's network, since there is no other.
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
AS_A_POD = ("--rm", "--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges")


class Podman:
    """Images and containers in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        (folder / "containers.conf").write_text(CONTAINERS_CONF)
        self._environment = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
        self._command = ("podman", f"--root={folder / 'store'}", f"--runroot={folder / 'run'}")

    def run(self, *arguments: str, given: int | None = None) -> str:
        done = subprocess.run([*self._command, *arguments], env=self._environment, stdin=given, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def inside(self, script: str) -> str:
        return self.run("run", *AS_A_POD, "--entrypoint=sh", "tandem", "-c", script)


def prepare(podman: Podman, folder: Path) -> None:
    """A Debian with Python under the name of the base image. Skips, with the reason, where that cannot be."""
    for tool in ("podman", "runc", "debootstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    base = folder / "base"
    made = subprocess.run(["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", str(base)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    if made.returncode:
        pytest.skip(f"debootstrap: {made.stdout[-300:]}")
    with subprocess.Popen(["tar", "--directory", str(base), "--create", "."], stdout=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        try:
            podman.run("import", "-", BASE, given=tar.stdout.fileno())
            podman.run("run", *AS_A_POD, BASE, "true")
        except AssertionError as error:
            pytest.skip(f"containers do not run here: {error}")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """With the image `tandem`, whose packages come from a folder: pip inside is told of no index."""
    folder = tmp_path_factory.mktemp("image")
    podman, context = Podman(folder), folder / "context"
    prepare(podman, folder)
    context.mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, context / part)
    download = ["download", "--quiet", "--dest", str(context / "wheels"), f"{ROOT}[ray]", "setuptools>=77"]
    subprocess.run([sys.executable, "-m", "pip", *download], check=True)
    offline = "--build-arg=PIP_OPTIONS=--no-index --find-links /src/wheels"
    podman.run("build", "--pull=never", offline, "--tag=tandem", str(context))
    yield podman
    podman.run("system", "reset", "--force")
    shutil.rmtree(folder)


@pytest.mark.image
def test_three_commands_in_a_container_without_rights(podman: Podman) -> None:
    assert podman.inside("id -u").strip() == "10001"
    for command in ("coordinator", "draft-worker", "target-worker"):
        assert "--config" in podman.run("run", *AS_A_POD, "tandem", command, "--help")
    assert "read-only" in podman.inside("touch /opt/tandem/x 2>&1; true").lower()
    assert podman.inside("for tool in gcc cc c++ make git; do command -v $tool; done; true") == ""
    assert podman.inside("for tool in ray hf; do command -v $tool; done").count("/opt/tandem/bin") == 2


@pytest.mark.image
def test_a_service_opens_its_port_and_says_what_is_missing(podman: Podman) -> None:
    told = podman.inside("tandem target-worker 2>&1; true")
    assert "listening on 127.0.0.1:7072" in told and "no such model" in told


def test_the_dockerfile_leaves_nothing_to_build_with_and_no_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE) and "RUN" not in last
    assert not re.search(r"apt-get|apk|curl|wget", text)

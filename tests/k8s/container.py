"""One container as a process: its own network, mounts, processes and user, from what its pod template says."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from k8s.manifests import ROOT, Document, Pod, environment, named
from k8s.network import DOMAIN, NAMESERVER, ZONE

SCRIPT = Path(__file__).with_suffix(".sh")
KILL_WAIT_S = 10.0


def image_environment() -> dict[str, str]:
    """What the Dockerfile sets; its interpreter is this one."""
    [text] = re.findall(r"^ENV ((?:.*\\\n)*.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    pairs = dict(re.findall(r"(\w+)=(\S+)", text))
    pairs["PATH"] = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    return pairs


class Container:
    """Starts as often as its kubelet says; the log goes on."""

    def __init__(self, name: str, pod: Pod, space: str, address: str, documents: tuple[Document, ...], volumes: Path):
        """`volumes`: a folder for each claim, by its name."""
        self.log = volumes / f"{name}.log"
        self._pod, self._space, self._address = pod, space, address
        self._folder = Path(tempfile.mkdtemp(prefix=f"tandem-{name}-"))
        self._prepare(documents, volumes)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        user = str(self._pod.spec["securityContext"]["runAsUser"])
        container = self._pod.container
        inner = ("sh", str(SCRIPT), str(self._folder), user, *container["command"], *container.get("args", ()))
        spaces = ("ip", "netns", "exec", self._space, "unshare", "--mount", "--pid", "--fork", "--kill-child")
        variables = {**image_environment(), **environment(self._pod, self._address), **self._fewer_threads()}
        with self.log.open("ab") as log:
            command = [*spaces, *inner]
            # A session each, so that the scheduler is as fair to it as to a container.
            self._process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    async def ended(self) -> int:
        while (code := self.exit_code) is None:
            await asyncio.sleep(0.05)
        return code

    async def stop(self, grace_s: float) -> bool:
        """SIGTERM, then SIGKILL after `grace_s`; whether the first was enough, and the process content."""
        self._signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.ended(), grace_s) == 0
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await asyncio.wait_for(self.ended(), KILL_WAIT_S)
            return False

    def remove(self) -> None:
        if self._process is not None and self.exit_code is None:
            self._signal(signal.SIGKILL)
            self._process.kill()
            self._process.wait(KILL_WAIT_S)
        shutil.rmtree(self._folder)

    def _fewer_threads(self) -> dict[str, str]:
        """The one thing that is not as the manifest has it: all pods share this machine's few cores."""
        threads = [name for name in self._pod.env if name.endswith("__THREADS")]
        return dict.fromkeys(threads, "1")

    def _signal(self, number: int) -> None:
        """To the first process inside, which its own process space lets ignore what it does not handle."""
        assert self._process is not None
        parent = self._process.pid
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            os.kill(int(child), number)

    def _prepare(self, documents: tuple[Document, ...], volumes: Path) -> None:
        (self._folder / "scratch").mkdir()
        search = f"search tandem.{ZONE} {ZONE} {DOMAIN}\noptions ndots:5\n"
        (self._folder / "resolv.conf").write_text(f"nameserver {NAMESERVER}\n{search}")
        within = [Path(sys.base_prefix), ROOT, Path(sys.prefix)]
        above = dict.fromkeys(str(folder) for path in within for folder in (path, *path.parents))
        (self._folder / "open").write_text("".join(f"{folder}\n" for folder in above))
        lines = [self._mount(mount, documents, volumes) for mount in self._pod.container["volumeMounts"]]
        lines += [f"ro {path} {path}" for path in within if path.is_relative_to("/tmp")]  # the pod's own /tmp hides it
        (self._folder / "mounts").write_text("".join(f"{line}\n" for line in lines))

    def _mount(self, mount: Document, documents: tuple[Document, ...], volumes: Path) -> str:
        [volume] = [volume for volume in self._pod.spec["volumes"] if volume["name"] == mount["name"]]
        access = "ro" if mount.get("readOnly") else "rw"
        if "emptyDir" in volume:
            return f"tmpfs none {mount['mountPath']}"
        if "configMap" in volume:
            folder = self._folder / volume["name"]
            folder.mkdir()
            for name, text in named(documents, "ConfigMap", volume["configMap"]["name"])["data"].items():
                (folder / name).write_text(text)
            return f"{access} {folder} {mount['mountPath']}"
        return f"{access} {volumes / volume['persistentVolumeClaim']['claimName']} {mount['mountPath']}"

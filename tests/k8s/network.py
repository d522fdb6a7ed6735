"""A pod network on one machine: a namespace for each pod, a bridge for each side, packets delayed between the sides."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

RELAY = Path(__file__).with_name("relay.py")
NODE = "10.213.0.1"
NAMESERVER = "10.213.0.53"
DOMAIN = "cluster.local"
ZONE = f"svc.{DOMAIN}"
OFFLOADS = ("tx", "off", "tso", "off", "gso", "off", "gro", "off")
NEAR, FAR = "near", "far"


def run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{given or ''}"
    return done.stdout


def inside(space: str, *command: str, given: str | None = None) -> str:
    return run("ip", "netns", "exec", space, *command, given=given)


class Network:
    """Two bridges in a namespace of their own, `near` and `far`, `delay_ms` apart each way; the node is near."""

    def __init__(self, delay_ms: float) -> None:
        self._prefix = f"td{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self._delay_ms = delay_ms
        self._spaces: list[str] = []
        self._ports: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self._add_space(self._switch)
        for side in (NEAR, FAR):
            inside(self._switch, "ip", "link", "add", side, "type", "bridge")
            inside(self._switch, "ip", "link", "set", side, "up")
            self._wire(self._switch, f"r-{side}", f"p-{side}", side)
        self._wire(None, self._node_device, "p-node", NEAR)
        run("ip", "address", "add", f"{NODE}/16", "dev", self._node_device)
        command = ("ip", "netns", "exec", self._switch, sys.executable, str(RELAY))
        self._relay = subprocess.Popen([*command, f"r-{NEAR}", f"r-{FAR}", str(self._delay_ms)])

    @property
    def _node_device(self) -> str:
        return f"{self._prefix}n"

    def add_pod(self, name: str, address: str, side: str = NEAR) -> str:
        """A namespace with one device, and its name."""
        space = f"{self._prefix}-{name}"
        self._add_space(space)
        port = f"v{next(self._numbers)}"
        self._wire(space, "eth0", port, side)
        inside(space, "ip", "address", "add", f"{address}/16", "dev", "eth0")
        inside(space, "ip", "link", "set", "lo", "up")
        self._ports[space] = port
        return space

    def remove_pod(self, space: str) -> None:
        run("ip", "netns", "delete", space)
        self._spaces.remove(space)

    def cut_off(self, space: str) -> None:
        """As a broken cable would: packets vanish, and nobody is told."""
        inside(self._switch, "ip", "link", "set", self._ports[space], "down")

    def join_again(self, space: str) -> None:
        inside(self._switch, "ip", "link", "set", self._ports[space], "up")

    def close(self) -> None:
        if self._relay is not None:
            self._relay.terminate()
            self._relay.wait(5)
        for space in [*self._spaces]:
            self.remove_pod(space)

    def _add_space(self, name: str) -> None:
        run("ip", "netns", "add", name)
        self._spaces.append(name)

    def _wire(self, space: str | None, device: str, port: str, side: str) -> None:
        """A cable from `device` in `space` (None: the node) to `port` of the bridge."""
        run("ip", "link", "add", device, *(("netns", space) if space else ()), "type", "veth", "peer", "name", port,
            "netns", self._switch)  # fmt: skip
        inside(self._switch, "ip", "link", "set", port, "master", side, "up")
        into = ("ip", "netns", "exec", space) if space else ()
        run(*into, "ip", "link", "set", device, "up")
        run(*into, "ethtool", "-K", device, *OFFLOADS)
        inside(self._switch, "ethtool", "-K", port, *OFFLOADS)


class ClusterDns:
    """dnsmasq in a pod of its own: a name stands for several addresses, or for none."""

    def __init__(self, space: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._hosts = Path(self._folder.name) / "hosts"
        self._hosts.touch()
        Path(self._folder.name).chmod(0o755)
        options = ("--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--user=root",
                   "--bind-interfaces", f"--listen-address={NAMESERVER}", "--pid-file=", f"--local=/{DOMAIN}/",
                   f"--addn-hosts={self._hosts}")  # fmt: skip
        command = ("ip", "netns", "exec", space, "dnsmasq", *options)
        self._server = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def say(self, names: Mapping[str, Iterable[str]]) -> None:
        lines = [f"{address} {name}.{ZONE}\n" for name, addresses in names.items() for address in addresses]
        self._hosts.write_text("".join(lines))
        self._server.send_signal(signal.SIGHUP)

    def close(self) -> None:
        self._server.terminate()
        self._server.wait(5)
        self._folder.cleanup()

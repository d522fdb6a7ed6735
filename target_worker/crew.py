"""The ranks beside this process: Ray places them, starts them and says when one is gone. No step passes through Ray."""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import dataclass
from typing import Any

from tandem.config import Config
from tandem.errors import TandemError
from target_worker.channel import Place, meeting_point
from target_worker.cluster import Cluster, ray_module
from target_worker.rank import Follower
from target_worker.rebuild import Rebuild
from target_worker.room import NoRoom, bundles, shortage


@dataclass(frozen=True, slots=True)
class Berth:
    """Where rank 0 stands among the others."""

    place: Place
    store: Any
    address: str
    gpu: int | None


class Crew:
    """Ranks 1 to N-1 as Ray actors of one placement group, whose first bundle is this process's own."""

    def __init__(self, config: Config, rebuild: Rebuild) -> None:
        self._config = config
        self._settings = config.target
        self._rebuild = rebuild
        self._closing = False
        self._with_gpu = config.model.device.startswith("cuda")
        self._actors: list[Any] = []
        self._group: Any = None
        self._cluster: Cluster | None = None
        self._outcome: queue.SimpleQueue[Berth | Exception] = queue.SimpleQueue()
        # A Ray of our own is ended by the kernel together with the thread that started it: this one stays.
        self._thread = threading.Thread(target=self._run, name="crew", daemon=True)

    def embark(self) -> Berth:
        """Starts the other ranks, which load at once. Raises ConfigError or NoRoom."""
        self._thread.start()
        outcome = self._outcome.get()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        """Ends the ranks and leaves the cluster; one of our own ends."""
        ray = ray_module()
        self._closing = True
        if self._cluster is None:
            return
        for actor in self._actors:
            ray.kill(actor)
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
        self._cluster.close()

    def _run(self) -> None:
        try:
            self._cluster = Cluster(self._settings.ray_address, self._settings.ray_wait_s)
            self._reserve()
            berth, refs = self._launch()
        except Exception as error:
            self._outcome.put(error)
            threading.Event().wait()
            return
        self._outcome.put(berth)
        self._watch(refs)

    def _reserve(self) -> None:
        ray = ray_module()
        settings = self._settings
        address = ray.util.get_node_ip_address()
        wanted = bundles(settings.tensor_parallel_size, settings.cpus_per_rank, self._with_gpu, address)
        self._group = ray.util.placement_group(wanted, strategy="PACK")
        if not self._group.wait(settings.ray_wait_s):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            lack = shortage(wanted, nodes, ray.available_resources())
            raise NoRoom(f"no room in Ray after {settings.ray_wait_s:g} s: {lack}")

    def _launch(self) -> tuple[Berth, list[Any]]:
        addresses = self._addresses()
        size, own = len(addresses), addresses[0]
        store = meeting_point(own, size)
        gpu = self._own_gpu() if self._with_gpu else None
        followers = [self._actor(Follower, rank) for rank in range(1, size)]
        self._actors += followers
        places = [Place(rank, size, addresses.count(addresses[rank]), own, store.port) for rank in range(size)]
        models, settings, first_gpu = self._config.model, self._settings, 0 if self._with_gpu else None
        refs = [
            actor.run.remote(place, models, settings, addresses[place.rank], first_gpu)
            for actor, place in zip(followers, places[1:], strict=True)
        ]
        return Berth(places[0], store, own, gpu), refs

    def _addresses(self) -> list[str]:
        """Of every rank's machine; the loopback address where there is only one."""
        ray = ray_module()
        node_of: dict[int, str] = ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        address_of = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        if len(set(node_of.values())) == 1:
            return ["127.0.0.1"] * len(node_of)
        return [address_of[node_of[rank]] for rank in range(len(node_of))]

    def _actor(self, body: type, bundle: int) -> Any:
        ray = ray_module()
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, bundle)
        return (
            ray.remote(body)
            .options(
                num_cpus=self._settings.cpus_per_rank,
                num_gpus=1 if self._with_gpu else 0,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=strategy,
            )
            .remote()
        )

    def _own_gpu(self) -> int:
        """The device that Ray gives to bundle 0, held by an actor that does nothing else; as torch counts them here."""
        ray = ray_module()
        holder = self._actor(_Holder, 0)
        self._actors.append(holder)
        given = str(ray.get(holder.gpu.remote(), timeout=self._settings.ray_wait_s))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        return visible.index(given) if given in visible else int(given)

    def _watch(self, refs: list[Any]) -> None:
        """Waits for the first rank that ends, which none does by itself."""
        ray = ray_module()
        done, _ = ray.wait(refs, num_returns=1)
        if self._closing:
            threading.Event().wait()
        rank, reason = refs.index(done[0]) + 1, "it ended"
        try:
            ray.get(done[0])
        except TandemError as error:
            self._rebuild.give_up(f"rank {rank}: {error}")
        except Exception as error:
            reason = f"{type(error).__name__}: {_first_line(error)}"
        self._rebuild(f"rank {rank} is lost: {reason}")


class _Holder:
    def gpu(self) -> str:
        ray = ray_module()
        return str(ray.get_gpu_ids()[0])


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")

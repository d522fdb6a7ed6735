"""The ranks beside this process: Ray places them, starts them and says when one is gone. No step passes through Ray."""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import replace
from typing import Any

from tandem.config import Config
from tandem.errors import TandemError
from target_worker.cluster import Cluster, first_line, import_ray
from target_worker.process_group import Placement, open_store
from target_worker.rank import RankActor
from target_worker.rebuild import Rebuild
from target_worker.resources import InsufficientResources, bundles, shortage

_POLL_S = 0.5
Launched = tuple[Placement, Any]  # rank 0's, and the store that it keeps


class RankActors:
    """Ranks 1 to N-1 as Ray actors of one placement group, whose first bundle is this process's own.

    One thread makes all calls to Ray, from its start to its end. Ray frees what a thread that waits in it still uses,
    and the kernel ends a Ray of our own together with the thread that started it.
    """

    def __init__(self, config: Config, shard_bytes: int, rebuild: Rebuild) -> None:
        """`shard_bytes`: memory of each rank's weights."""
        self._config = config
        self._settings = config.target
        self._shard_bytes = shard_bytes
        self._rebuild = rebuild
        self._with_gpu = config.model.device.startswith("cuda")
        self._actors: list[Any] = []
        self._placement_group: Any = None
        self._cluster: Cluster | None = None
        self._launched: queue.SimpleQueue[Launched | Exception] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()

    def wait_launched(self) -> Launched:
        """Returns when all ranks are starting. Raises ConfigError or InsufficientResources."""
        launched = self._launched.get()
        if isinstance(launched, Exception):
            raise launched
        return launched

    def close(self) -> None:
        """Ends the ranks and leaves the cluster; one of our own ends."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._cluster = Cluster(self._settings.ray_address, self._settings.ray_wait_s)
            self._reserve()
            launched, tasks = self._launch()
        except Exception as error:
            self._launched.put(error)
        else:
            self._launched.put(launched)
            self._watch(tasks)
        self._closing.wait()
        self._release()

    def _reserve(self) -> None:
        ray, settings = import_ray(), self._settings
        each = {"CPU": settings.cpus_per_rank}
        each |= {"GPU": 1.0} if self._with_gpu else {"memory": float(self._shard_bytes)}
        wanted = bundles(settings.tensor_parallel_size, each, ray.util.get_node_ip_address())
        self._placement_group = ray.util.placement_group(wanted, strategy="PACK")
        if not self._placement_group.wait(settings.ray_wait_s):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            lack = shortage(wanted, nodes, ray.available_resources())
            raise InsufficientResources(f"no room in Ray after {settings.ray_wait_s:g} s: {lack}")

    def _launch(self) -> tuple[Launched, list[Any]]:
        addresses = self._addresses()
        size, own = len(addresses), addresses[0]
        store = open_store(own, size)
        gpu = 0 if self._with_gpu else None
        placements = [
            Placement(rank, size, addresses.count(address), address, gpu, own, store.port)
            for rank, address in enumerate(addresses)
        ]
        zero = replace(placements[0], gpu=self._own_gpu()) if self._with_gpu else placements[0]
        actors = [self._start_actor(RankActor, rank) for rank in range(1, size)]
        tasks = [
            actor.run.remote(placement, self._config) for actor, placement in zip(actors, placements[1:], strict=True)
        ]
        return (zero, store), tasks

    def _addresses(self) -> list[str]:
        """Of every rank's machine; the loopback address where there is only one."""
        ray = import_ray()
        node_of: dict[int, str] = ray.util.placement_group_table(self._placement_group)["bundles_to_node_id"]
        address_of = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        if len(set(node_of.values())) == 1:
            return ["127.0.0.1"] * len(node_of)
        return [address_of[node_of[rank]] for rank in range(len(node_of))]

    def _start_actor(self, body: type, bundle: int) -> Any:
        ray = import_ray()
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._placement_group, bundle)
        actor = (
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
        self._actors.append(actor)
        return actor

    def _own_gpu(self) -> int:
        """The device that Ray gives to bundle 0, held by an actor that does nothing else; as torch counts them here."""
        holder = self._start_actor(_GpuHolder, 0)
        given = str(import_ray().get(holder.gpu.remote(), timeout=self._settings.ray_wait_s))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        return visible.index(given) if given in visible else int(given)

    def _watch(self, tasks: list[Any]) -> None:
        """Waits for the first rank that ends, which none does by itself, or until all are to end."""
        ray = import_ray()
        done: list[Any] = []
        while not done and not self._closing.is_set():
            done, _ = ray.wait(tasks, num_returns=1, timeout=_POLL_S)
        if not self._closing.is_set():
            self._report_lost(tasks.index(done[0]) + 1, done[0])

    def _report_lost(self, rank: int, task: Any) -> None:
        try:
            import_ray().get(task)
        except TandemError as error:
            self._rebuild.give_up(f"rank {rank}: {error}")
        except Exception as error:
            self._rebuild(f"rank {rank} is lost: {type(error).__name__}: {first_line(error)}")

    def _release(self) -> None:
        if self._cluster is None:
            return
        ray = import_ray()
        for actor in self._actors:
            ray.kill(actor)
        if self._placement_group is not None:
            ray.util.remove_placement_group(self._placement_group)
        self._cluster.close()


class _GpuHolder:
    def gpu(self) -> str:
        return str(import_ray().get_gpu_ids()[0])

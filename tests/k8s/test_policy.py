"""What schemas do not say: parts that must agree, and what every pod of ours has.

A family: manifests that an API server takes and that then do not work, or do not stop.
"""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.door import SERVICE_NAME
from k8s.manifests import COMPONENT, SERVICES, Document, Pod, config_of, environment, named, of_kind, pods, services
from k8s.netpol import selects
from tandem.addresses import split_address
from tandem.config import Config
from tandem.rpc.health import LIVENESS

pytestmark = pytest.mark.k8s

WORKERS = ("draft", "target")
READINESS = {"coordinator": SERVICE_NAME, "draft": "tandem.v1.Draft", "target": "tandem.v1.Target"}
LOADING_S = 1200
Documents = tuple[Document, ...]


def service_named(documents: Documents, component: str) -> Document:
    return named(documents, "Service", f"tandem-{component}")


def test_every_service_is_deployed(documents: Documents) -> None:
    assert {pod.component for pod in services(documents)} == set(SERVICES)


def test_restricted_pod_security(documents: Documents) -> None:
    """The fields that https://kubernetes.io/docs/concepts/security/pod-security-standards asks for, and more."""
    assert (
        named(documents, "Namespace", "tandem")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        == "restricted"
    )
    for pod in pods(documents):
        assert pod.spec["securityContext"]["runAsNonRoot"] and pod.spec["securityContext"]["runAsUser"] >= 10000
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.spec.keys()
        assert not [volume for volume in pod.spec["volumes"] if "hostPath" in volume]


def test_no_pod_has_a_token(documents: Documents) -> None:
    for pod in pods(documents):
        account = named(documents, "ServiceAccount", pod.spec["serviceAccountName"])
        assert account["automountServiceAccountToken"] is pod.spec["automountServiceAccountToken"] is False
    assert not of_kind(documents, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def test_resources_are_requested_and_limited(documents: Documents) -> None:
    """Requests equal to limits: a pod that is evicted because its neighbours grow breaks requests."""
    for pod in pods(documents):
        assert pod.container["resources"]["requests"] == pod.container["resources"]["limits"]
        assert {"cpu", "memory"} <= pod.container["resources"]["limits"].keys()


def test_one_image(documents: Documents) -> None:
    [image] = {pod.container["image"] for pod in pods(documents)}
    assert image.partition(":")[2] not in ("", "latest")


def test_every_setting_is_known(documents: Documents) -> None:
    """Also those of the environment, where the settings module refuses nothing."""
    for pod in pods(documents):
        for variable in (name for name in pod.env if name.startswith("TANDEM_")):
            section, _, key = variable.removeprefix("TANDEM_").lower().partition("__")
            assert key in type(getattr(Config(), section)).model_fields, variable
    for pod in services(documents):
        config_of(documents, pod)  # refuses unknown keys of the file


def test_service_links_are_off(documents: Documents) -> None:
    """A Service named tandem-target puts TANDEM_TARGET_PORT=tcp://... into every other pod's environment."""
    assert all(pod.spec["enableServiceLinks"] is False for pod in pods(documents))


def probe(pod: Pod, kind: str) -> dict[str, Any]:
    found = dict(pod.container[f"{kind}Probe"])
    assert "initialDelaySeconds" not in found
    return found


def test_probes_ask_the_services_own_health(documents: Documents) -> None:
    for pod in services(documents):
        port = pod.ports["grpc"]
        assert probe(pod, "liveness")["grpc"] == {"port": port, "service": LIVENESS}
        assert probe(pod, "readiness")["grpc"] == {"port": port, "service": READINESS[pod.component]}
        started = READINESS[pod.component] if pod.component in WORKERS else LIVENESS
        assert probe(pod, "startup")["grpc"] == {"port": port, "service": started}


def test_loading_has_time_and_a_hang_is_found(documents: Documents) -> None:
    for pod in services(documents):
        startup, liveness = probe(pod, "startup"), probe(pod, "liveness")
        assert pod.component not in WORKERS or startup["periodSeconds"] * startup["failureThreshold"] >= LOADING_S
        assert 15 <= liveness["periodSeconds"] * liveness["failureThreshold"] <= 60
    for pod in pods(documents):
        if pod.component == "rank":
            assert {probe(pod, kind)["tcpSocket"]["port"] for kind in ("startup", "liveness", "readiness")} == {
                "raylet"
            }


def test_a_departure_ends_before_it_is_cut_short(documents: Documents) -> None:
    """First the address leaves DNS and coordinators notice, then running requests end, then the process."""
    for pod in services(documents):
        rpc = config_of(documents, pod).rpc
        assert pod.stop_pause_s + rpc.drain_s + 5 <= pod.spec["terminationGracePeriodSeconds"]
        coordinators = [pod for pod in services(documents) if pod.component == "coordinator"]
        assert config_of(documents, coordinators[0]).coordinator.resolve_s < pod.stop_pause_s
        for rank in (rank for rank in pods(documents) if rank.component == "rank"):
            assert pod.stop_pause_s + rpc.drain_s <= rank.stop_pause_s < rank.spec["terminationGracePeriodSeconds"]


def test_the_numbers_of_a_departure_are_one(documents: Documents) -> None:
    assert len({pod.stop_pause_s for pod in services(documents)}) == 1
    assert (
        len({pod.spec["terminationGracePeriodSeconds"] for pod in pods(documents) if pod.component != "weights"}) == 1
    )
    assert len({config_of(documents, pod).rpc.drain_s for pod in services(documents)}) == 1


def test_a_rollout_takes_no_pod_before_its_successor_is_ready(documents: Documents) -> None:
    for deployment in of_kind(documents, "Deployment"):
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    for group in of_kind(documents, "LeaderWorkerSet"):
        rollout = group["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        assert rollout == {"maxSurge": 1, "maxUnavailable": 0}


def test_ports_agree(documents: Documents) -> None:
    for pod in services(documents):
        section = getattr(config_of(documents, pod), pod.component)
        assert pod.ports == {"grpc": section.port, "metrics": section.metrics_port}
        assert section.host == "0.0.0.0", "others could not reach it"
        [port] = service_named(documents, pod.component)["spec"]["ports"]
        assert port["port"] == pod.ports[port["targetPort"]]


def test_services_are_headless_and_select_their_pods_alone(documents: Documents) -> None:
    for component in SERVICES:
        spec = service_named(documents, component)["spec"]
        assert spec["clusterIP"] == "None"
        assert {pod.component for pod in pods(documents) if selects({"matchLabels": spec["selector"]}, pod.labels)} == {
            component
        }


def test_coordinators_dial_services_that_are_there(documents: Documents) -> None:
    [pod] = [pod for pod in services(documents) if pod.component == "coordinator"]
    settings = config_of(documents, pod).coordinator
    for component, addresses in (("target", settings.targets), ("draft", settings.drafts)):
        [(host, number)] = [split_address(address) for address in addresses]
        assert host == f"tandem-{component}"
        assert number == service_named(documents, component)["spec"]["ports"][0]["port"]


def test_owners_select_their_own_pods(documents: Documents) -> None:
    for deployment in of_kind(documents, "Deployment"):
        selector, template = deployment["spec"]["selector"], deployment["spec"]["template"]
        assert selects(selector, template["metadata"]["labels"])
        spread = template["spec"]["topologySpreadConstraints"]
        assert spread and all(selects(entry["labelSelector"], template["metadata"]["labels"]) for entry in spread)


def test_pools_are_wanted_near_the_coordinators(documents: Documents) -> None:
    [coordinator] = [pod for pod in services(documents) if pod.component == "coordinator"]
    for pod in services(documents):
        if pod.component in WORKERS and pod.owner["kind"] == "Deployment":
            [near] = pod.spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            assert selects(near["podAffinityTerm"]["labelSelector"], coordinator.labels)
            assert near["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"


def test_each_pool_has_a_disruption_budget(documents: Documents) -> None:
    for component in SERVICES:
        spec = named(documents, "PodDisruptionBudget", f"tandem-{component}")["spec"]
        assert {pod.component for pod in pods(documents) if selects(spec["selector"], pod.labels)} == {component}
        assert ("maxUnavailable" in spec) != ("minAvailable" in spec)
        scalable = not [
            pod for pod in services(documents) if pod.component == component and pod.owner["kind"] == "RayCluster"
        ]
        assert ("maxUnavailable" in spec) == scalable, "a budget in unavailable pods needs an owner with a scale"


def test_each_pool_scales_by_itself(documents: Documents) -> None:
    """What an autoscaler sets, a manifest must not."""
    owners = {pod.component: pod.owner for pod in services(documents)}
    scaled = {
        scaler["metadata"]["labels"][COMPONENT]: scaler["spec"]
        for scaler in of_kind(documents, "HorizontalPodAutoscaler")
    }
    assert scaled.keys() == {name for name, owner in owners.items() if owner["kind"] != "RayCluster"}
    for component, spec in scaled.items():
        owner = owners[component]
        assert spec["scaleTargetRef"] == {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
        }
        assert "replicas" not in owner["spec"]
        assert 2 <= spec["minReplicas"] < spec["maxReplicas"]


def test_a_group_leaves_the_name_of_our_service_alone(documents: Documents) -> None:
    """LeaderWorkerSet's controller makes a Service of the set's name, with all pods of it, ready or not."""
    names = {service["metadata"]["name"] for service in of_kind(documents, "Service")}
    assert not [group for group in of_kind(documents, "LeaderWorkerSet") if group["metadata"]["name"] in names]


def test_a_target_that_does_not_scale_is_there_twice(documents: Documents) -> None:
    assert len(of_kind(documents, "RayCluster")) in (0, 2)


def test_weights_are_read_only_and_offline(documents: Documents) -> None:
    for pod in pods(documents):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        [mount] = [mount for mount in pod.container["volumeMounts"] if mount["mountPath"] == "/models"]
        claim = volumes[mount["name"]]["persistentVolumeClaim"]
        assert named(documents, "PersistentVolumeClaim", claim["claimName"])
        filled = pod.component == "weights"
        assert bool(mount.get("readOnly")) == bool(claim.get("readOnly")) == (not filled)
        assert environment(pod, "")["HF_HUB_OFFLINE"] == ("0" if filled else "1")


def test_what_a_pod_reads_is_mounted(documents: Documents) -> None:
    for pod in pods(documents):
        mounts = {mount["name"]: mount["mountPath"] for mount in pod.container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in pod.spec["volumes"]}
        assert mounts["tmp"] == "/tmp", "the root file system is read-only"
    for pod in services(documents):
        model = config_of(documents, pod).model
        assert model.target.startswith("/models/") and model.draft.startswith("/models/")
        assert "/etc/tandem/tandem.yaml" in " ".join([*pod.container["command"], *pod.container["args"]])


def test_threads_are_what_the_pod_may_use(documents: Documents) -> None:
    """torch would take all cores of the node."""
    for pod in services(documents):
        if pod.component in WORKERS:
            section = getattr(config_of(documents, pod), pod.component)
            assert section.threads == int(pod.container["resources"]["limits"]["cpu"])


def num_gpus(pod: Pod) -> int:
    return int(pod.container["resources"]["limits"].get("nvidia.com/gpu", 0))


def test_ranks_have_their_devices_shared_memory_and_the_token(documents: Documents) -> None:
    [size] = {config_of(documents, pod).target.tensor_parallel_size for pod in services(documents)}
    for pod in (pod for pod in pods(documents) if pod.component in ("target", "rank") and size > 1):
        assert size == num_gpus(pod) * pods_of_group(pod.owner)
        [shm] = [mount["name"] for mount in pod.container["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
        [volume] = [volume for volume in pod.spec["volumes"] if volume["name"] == shm]
        assert volume["emptyDir"]["medium"] == "Memory"
        assert pod.env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "tandem-ray"
        assert environment(pod, "")["RAY_AUTH_MODE"] == "token"


def pods_of_group(owner: Document) -> int:
    if owner["kind"] == "LeaderWorkerSet":
        return int(owner["spec"]["leaderWorkerTemplate"]["size"])
    if owner["kind"] == "RayCluster":
        return 1 + sum(int(group["replicas"]) for group in owner["spec"]["workerGroupSpecs"])
    return 1


def test_devices_are_used_where_there_are_any(documents: Documents) -> None:
    for pod in services(documents):
        if pod.component in WORKERS:
            assert (config_of(documents, pod).model.device == "cuda") == (num_gpus(pod) > 0)


def test_no_secret_is_written_down(documents: Documents) -> None:
    assert not of_kind(documents, "Secret")
    for pod in pods(documents):
        secret = [name for name in pod.env if name.endswith(("_TOKEN", "_PASSWORD", "_KEY"))]
        assert all("secretKeyRef" in pod.env[name].get("valueFrom", {}) for name in secret)

"""Stands for one of the three services, whichever its file is named for: healthy at once, and as FAKE_* says.

FAKE_DIES names the service that exits at its start; FAKE_REASON is why the coordinator does not use the draft.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import yaml
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tandem.v1 import coordinator_pb2 as pb
from tandem.v1 import coordinator_pb2_grpc

NAME = Path(__file__).stem
SECTION = NAME.removesuffix("_worker")


class Coordinator(coordinator_pb2_grpc.CoordinatorServicer):
    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        reason = os.environ.get("FAKE_REASON", "")
        return pb.StatusResponse(workers=[pb.WorkerStatus(role="draft", ready=not reason, reason=reason)])


def serve(port: int) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(Coordinator(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server


if os.environ.get("FAKE_DIES") == NAME:
    sys.exit(f"{NAME}: out of memory")
settings = yaml.safe_load(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
assert "--stop-with-parent" in sys.argv
Path(os.environ["FAKE_PIDS"], f"{NAME}-{settings[SECTION]['port']}").write_text(f"{os.getpid()}\n")
server = serve(settings[SECTION]["port"])
sys.stdin.read()

"""The target service. Before gRPC is loaded here, its handlers of fork() are turned off.

Ray forks to start its processes. The handlers would then stop and restart gRPC's threads under a running server, which
breaks connections and, by gRPC's own account, memory. No child of ours uses gRPC before it becomes another program.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

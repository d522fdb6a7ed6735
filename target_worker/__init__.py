"""The target service. Before gRPC is loaded here, its handlers of fork() are turned off.

Ray forks to start its processes. The handlers would then stop and restart gRPC's threads under a running server, which
breaks connections and, by gRPC's own account, memory. No child of ours uses gRPC before it becomes another program.
Its torch threads do not hold cores that they have no work for.
"""

import os

from tandem.process import spin_briefly

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
spin_briefly()

"""A cluster of Ray with one node on this machine, which lasts as long as its standard input."""

import signal
import sys

_OBJECT_STORE_BYTES = 80_000_000


def main() -> None:
    """Read PROCESSORS from the command line; say the address."""
    from ray.cluster_utils import Cluster

    (processors,) = sys.argv[1:]
    node = {
        **{"node_ip_address": "127.0.0.1", "num_cpus": int(processors), "object_store_memory": _OBJECT_STORE_BYTES},
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=node)
    print(cluster.address, flush=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()

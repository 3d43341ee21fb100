"""Do something in a process for each rank of a group, as torchrun starts them."""

import os
import traceback
from collections.abc import Callable

from tests.page.site import free_port


def on_ranks(ranks: int, work: Callable[[int], object]) -> bool:
    """Fork for each rank, which does `work` with its number; return whether all have ended well."""
    children, port = [], free_port()
    for rank in range(ranks):
        child = os.fork()
        if not child:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ |= {name: str(value) for name, value in {**names, "MASTER_PORT": port}.items()}
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            try:
                work(rank)
            except BaseException as error:
                traceback.print_exception(error)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return not any([os.waitpid(child, 0)[1] for child in children])

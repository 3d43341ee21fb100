"""Begin a part on a machine where this package may be another, or missing: goes there by value, and asks first."""

from collections.abc import Iterator


def enter(text: str, version: str) -> Iterator[tuple[str, str]]:
    """Do the part that `text` is with this package in `version`; yield the name of the node and what is said there.

    That is what `worker.work` yields. A mere version in the place of a line means that another one is here and nothing
    was done; "" that the package cannot be imported.
    """
    import ray

    node = f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"
    try:
        from sharding import __version__ as here
    except ImportError:
        here = ""
    if here != version:
        yield node, here
        return
    from sharding.fleet.worker import work

    for line in work(text, node):
        yield node, line

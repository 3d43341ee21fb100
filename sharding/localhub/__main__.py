"""Serve the loopback Hub: `python -m sharding.localhub --port PORT --folder DIR`."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharding.localhub.hub import Hub


def main(
    arguments: Sequence[str] | None = None,
    add_samples: "Callable[[Hub], None] | None" = None,
    program: str = "python -m sharding.localhub",
) -> None:
    """Read `arguments` (None: the command line) and serve until stopped. `add_samples` makes --samples an option."""
    parser = argparse.ArgumentParser(
        prog=program,
        epilog=f"Example: {program} --folder ./hub --port 8000",
        description="Serve a Hub on this machine. User NAME has the tokens hf_NAME (write) and hf_NAME_read (read).",
        argument_default=argparse.SUPPRESS,  # for what is not given, `Settings` has the default
    )
    add, number = parser.add_argument, dict[str, Any](type=int, metavar="N")
    add("--port", type=int, default=0, help="port on 127.0.0.1; default: 0, a free one")
    add("--folder", type=lambda text: Path(_text(text)), required=True, help="folder for repos and accounts")
    add("--user", action="append", type=_text, dest="users", metavar="NAME", help="a user; default: alice and bob")
    add("--org", action="append", type=_org, dest="orgs", metavar="NAME=member,member", help="an organisation")
    if add_samples:
        add("--samples", action="store_true", help="add sample models under samples/ and alice/")
    add("--no-xet", action="store_false", dest="xet", help="use only LFS; clients need HF_HUB_DISABLE_XET=1")
    add("--xet-over-http", action="store_true", help="serve the Xet store over HTTP, not on the disk")
    add("--xet-seconds", help="how long an upload token is valid; default: 12 hours", **number)
    add("--quota", type=int, dest="quota_bytes", metavar="BYTES", help="storage of each namespace; default: no limit")
    add("--page", dest="page_items", help="items per page of a list", **number)
    large = "larger LFS files come in parts"
    add("--lfs-multipart-above", type=int, dest="multipart_above_bytes", metavar="BYTES", help=large)
    add("--oauth-seconds", help="how long a login is valid; default: 8 hours", **number)
    rule = "break answers: KIND[:VALUE][=ADDRESS]@PATTERN[%%CHANCE][#TIMES], see sharding/localhub/faults.py"
    add("--fault", action="append", type=_text, default=[], metavar="RULE", help=rule)
    add("--access-log", action="store_true", default=False, help="print a line for each request to standard output")
    add("--seed", default=0, help="seed for the chances of faults", **number)
    options = parser.parse_args(arguments)

    # Late: these imports take half a second, and --help does not need them.
    from starlette.middleware import Middleware

    from sharding.localhub.faults import Faults, parse_fault
    from sharding.localhub.hub import Settings
    from sharding.localhub.server import serve

    given = {field.name: getattr(options, field.name) for field in fields(Settings) if field.name in options}
    settings = Settings(**{**given, "orgs": dict(given.get("orgs", ()))})
    rules = [parse_fault(rule) for rule in options.fault]
    middleware = [Middleware(Faults, rules, options.seed)] if rules else []
    fill = add_samples if "samples" in options else None
    serve(options.port, options.folder, settings, fill, middleware, access_log=options.access_log)


def _text(argument: str) -> str:
    if not argument.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return argument


def _org(argument: str) -> tuple[str, tuple[str, ...]]:
    name, _, members = _text(argument).partition("=")
    return name, tuple(filter(None, members.split(",")))


if __name__ == "__main__":
    main()

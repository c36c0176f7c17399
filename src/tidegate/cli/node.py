"""`tidegate node`: what runs state nodes on a machine for drivers elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def node(
    listen: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="HOST or HOST:PORT of this machine; no port: any.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What drivers and machines share; see the next one.")
    ] = None,
    new_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a new one, and end.")
    ] = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="A folder or store; state.registry of the drivers."),
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A local folder for files of nodes."),
    ] = None,
) -> None:
    """Run state nodes on this machine for drivers with state.provider=remote.

    SIGTERM (or Ctrl-C) has them move to other machines first; a second one ends them at once.
    """
    import logging
    import signal
    import sys
    from threading import Event

    from tidegate.errors import ConfigError
    from tidegate.security import token_file as tokens
    from tidegate.state.supervisor.registered import serve
    from tidegate.state.supervisor.registry import Registry
    from tidegate.storage.place import open_storage

    if new_token_file is not None:
        tokens.create(new_token_file)
        typer.echo(f"wrote {new_token_file}; copy it to every machine, for the eyes of its users only")
        return
    if listen is None or token_file is None or register is None:
        raise ConfigError("tidegate node needs --listen, --token-file and --register")
    host, port = _parsed(listen)
    security = tokens.read(token_file)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    leave, end = Event(), Event()

    def stop(*_: object) -> None:
        if leave.is_set():
            end.set()
        leave.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    serve(
        host,
        port,
        registry=Registry(open_storage(register, private=False)),
        security=security,
        scratch=scratch,
        leave=leave,
        end=end,
    )


def _parsed(listen: str) -> tuple[str, int]:
    """The host and the port, 0 for any, of an address.

    >>> _parsed("10.0.0.5:7400"), _parsed("[::1]:7400"), _parsed("::1"), _parsed("db1")
    (('10.0.0.5', 7400), ('::1', 7400), ('::1', 0), ('db1', 0))
    """
    from tidegate.errors import ConfigError

    host, colon, port = listen.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = listen, "0"
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{listen!r} is no address to listen on; write it like 10.0.0.5:7400")
    if host in ("0.0.0.0", "::"):
        raise ConfigError("drivers need one address to connect to, so give --listen one of this machine's")
    return host, int(port)

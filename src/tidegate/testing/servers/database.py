"""A real PostgreSQL server in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.testing.servers.daemon import ServerError, free_port, home, packaged, running

_PLACES = "/usr/lib/postgresql"


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server for the length of the block and yield its DSN.

    A crash of the machine (not of the server) may lose data. The server refuses to run as root: then it runs
    as user `postgres`.
    """
    programs = installed()
    user = "postgres" if os.geteuid() == 0 else None
    with home("postgres") as folder:
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        data = folder / "data"
        _create(programs, data, user)
        port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": folder,
            "fsync": "off",
            "max_connections": 50,
            "shared_buffers": "32MB",
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with running(
            [str(programs / "postgres"), "-D", str(data), *options],
            name="PostgreSQL",
            log=folder / "server.log",
            answers=lambda: _answers(programs, port),
            stop_signal=signal.SIGINT,  # its "fast" shutdown: does not wait for clients
            user=user,
        ):
            yield f"postgresql://tidegate:secret@127.0.0.1:{port}/postgres"


def installed() -> Path:
    """The folder with the server's programs, installed if they are missing and we may."""
    return packaged("PostgreSQL", "postgresql", _find)


def _find() -> Path | None:
    # Debian keeps the programs of each version apart, and off the PATH.
    versions = sorted(Path(_PLACES).glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if versions:
        return versions[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def _create(programs: Path, data: Path, user: str | None) -> None:
    password = data.parent / "password"
    password.write_text("secret\n")
    password.chmod(0o644)
    command = [
        str(programs / "initdb"),
        *("-D", str(data), "-U", "tidegate", "-A", "scram-sha-256", f"--pwfile={password}"),
        *("-E", "UTF8", "--locale=C", "--no-sync"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd="/", user=user, group=user, check=False
    )
    if done.returncode != 0:
        raise ServerError(f"PostgreSQL could not create its files:\n{done.stdout}{done.stderr}")


def _answers(programs: Path, port: int) -> bool:
    ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(ready, check=False).returncode == 0

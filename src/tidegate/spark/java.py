"""The Java that Spark starts: which one it is, and whether it will do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST = 17
INSTALL = "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless"


def command() -> str:
    """What Spark starts: the Java of JAVA_HOME if that is set, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def remedy() -> str:
    """What to do when that one will not do."""
    if not os.environ.get("JAVA_HOME"):
        return INSTALL
    return f"unset JAVA_HOME, or point it to Java {OLDEST} or newer; or: {INSTALL}"


def missing() -> str | None:
    """Why there is no Java to start; None when there is one, of whichever version."""
    if shutil.which(command()) is not None:
        return None
    home = os.environ.get("JAVA_HOME")
    if home:
        return f"JAVA_HOME is {home}, and there is no program {command()}"
    return "there is no java on the PATH, and JAVA_HOME is not set"


def version() -> str:
    """The version that it says it has; empty when it says none. OSError when it does not start."""
    try:
        said = subprocess.run(
            [command(), "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"no answer within {error.timeout:g} s") from error
    return version_in(said)


def version_in(said: str) -> str:
    """The version in what `java -version` says; empty when there is none.

    >>> version_in('openjdk version "17.0.15" 2025-04-15'), version_in('java version "1.8.0_392"')
    ('17.0.15', '1.8.0_392')
    """
    match = re.search(r'version "(\d[\w.]*)', said)
    return match[1] if match else ""


def is_new_enough(version: str) -> bool:
    """Whether Spark runs on a Java of this version.

    >>> is_new_enough("17.0.15"), is_new_enough("1.8.0_392"), is_new_enough("")
    (True, False, False)
    """
    return bool(version) and int(re.sub(r"^1\.", "", version).partition(".")[0]) >= OLDEST

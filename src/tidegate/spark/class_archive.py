"""Spark's classes as a file that a JVM maps into memory, so that it need not read and check each of them: a
driver starts with about half the work, and an executor on the same machine with less, too.

The first run on a machine writes the archive when it ends; later ones use it. Java itself checks whether the
archive matches its version and the jars, and ignores it if not.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.spark import java
from tidegate.spark.ivy import cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_JAVA = "spark.driver.extraJavaOptions"
_RECORD = "-XX:+RecordDynamicDumpInfo"
_OWN = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare", _RECORD)
_QUIET = "-Xlog:cds*=off"
"""Java complains on standard output, which belongs to the pipeline."""


def options(conf: Mapping[str, str]) -> str:
    """Options for the JVM of a driver with these settings: use the archive, or be ready to write it.

    Empty if the user has set options that conflict with these.
    """
    place = archive()
    if place is None or "spark.driver.extraClassPath" in conf or any(o in conf.get(_JAVA, "") for o in _OWN):
        return ""
    return existing() or f"{_RECORD} {_QUIET}"


def existing() -> str:
    """Options for the JVM of an executor on this machine: use the archive. Empty without one."""
    place = archive()
    return f"-XX:SharedArchiveFile={place} {_QUIET}" if place is not None and place.exists() else ""


def keep(spark: SparkSession) -> None:
    """Write the archive with the classes that the driver has loaded by now, unless it exists. Takes a few
    seconds. Does not raise: without it, the next start is only slower."""
    place = archive()
    if place is None or place.exists():
        return
    mine = place.with_name(f"{place.stem}.{os.getpid()}.jsa")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write(spark.sparkContext._gateway, mine)
        mine.replace(place)
        log.info("the next start is faster: Spark's classes are in %s", place)
    except Exception as error:
        log.debug("Spark's classes were not archived: %s", error)
        mine.unlink(missing_ok=True)


def archive() -> Path | None:
    """Where the archive of this Java and this Spark is; None without a Java that can have one."""
    found = shutil.which(java.command())
    modules = Path(found).resolve().parents[1] / "lib" / "modules" if found else None
    if modules is None or not modules.is_file():
        return None
    import pyspark

    parts = (modules, modules.stat().st_mtime_ns, pyspark.__file__, pyspark.__version__)
    name = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    return cache() / f"spark-{pyspark.__version__}-{name}.jsa"


def write(gateway: Any, place: Path) -> None:
    """Do what `jcmd PID VM.cds dynamic_dump` does, which a Java without tools does not have."""
    jvm, named = gateway.jvm, gateway.jvm.java.lang.Class.forName

    def array(kind: Any, *items: Any) -> Any:
        made = gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            made[index] = item
        return made

    texts = "[Ljava.lang.String;"
    types = ("javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", texts)
    # By the interface: the class of the server is not open to others.
    invoke = named("javax.management.MBeanServer").getMethod(
        "invoke", array(jvm.java.lang.Class, *map(named, types))
    )
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    commands = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    words = array(jvm.java.lang.String, "dynamic_dump", str(place))
    called = array(jvm.java.lang.Object, words), array(jvm.java.lang.String, texts)
    shown = jvm.java.lang.System.out
    jvm.java.lang.System.setOut(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    try:
        invoke.invoke(server, array(jvm.java.lang.Object, commands, "vmCds", *called))
    finally:
        jvm.java.lang.System.setOut(shown)

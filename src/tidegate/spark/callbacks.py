"""Calls from Java into this process, from Spark's Java alone.

PySpark has Python listen on loopback for them, without asking who calls: Py4J knows a token for that, but
Java's side forgets it when it is told the port. So here it is told both.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ensure_callbacks(spark: SparkSession) -> None:
    """Listen for calls from Java. Changes nothing if this process listens already."""
    from py4j.java_gateway import JavaObject
    from pyspark import java_gateway

    gateway: Any = spark.sparkContext._gateway
    if gateway.__dict__.get("_callback_server") is not None:
        return
    token = secrets.token_urlsafe(32)
    gateway.callback_server_parameters.auth_token = token
    java_gateway.ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    server: Any = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    jvm, known = gateway.jvm, server.getCallbackClient()
    client = jvm.py4j.PythonClient(
        server.getGateway(),
        None,  # No commands of its own.
        gateway._callback_server.port,
        known.getAddress(),
        0,
        jvm.java.util.concurrent.TimeUnit.SECONDS,
        jvm.javax.net.SocketFactory.getDefault(),
        server,
        True,  # Objects are released when Python forgets them.
        0,  # No limit of the time for an answer.
        token,
    )
    field = jvm.java.lang.Class.forName("py4j.Gateway").getDeclaredField("cbClient")
    field.setAccessible(True)
    field.set(server.getGateway(), client)

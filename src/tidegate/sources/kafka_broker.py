"""Whether a Kafka broker can be reached and has a topic, found without Spark and within seconds."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from difflib import get_close_matches

_SECONDS = 5.0


def problem(bootstrap: str, topic: str, options: Mapping[str, str], *, create: bool = False) -> str | None:
    """Why a topic cannot be used, for people; None when nothing is found. `create`: it may be missing.

    `options` are those of Spark's connector. If the broker cannot be asked, only the connection is tried.
    """
    if (refusal := _unreachable(bootstrap)) is not None:
        return f"no broker at {bootstrap} can be reached ({refusal}); start it, or correct `bootstrap`"
    if not is_askable(options):
        return None
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        topics = client.list_topics(timeout=_SECONDS).topics  # Asked for by name, it might be created.
    except KafkaException as error:
        return f"the broker at {bootstrap} does not answer: {error.args[0].str()}"
    if create or topic in topics:
        return None
    alike = get_close_matches(topic, topics, n=1)
    meant = f"; did you mean {alike[0]!r}?" if alike else ""
    return f"there is no topic {topic!r} at {bootstrap}: create it, or correct the name{meant}"


def is_askable(options: Mapping[str, str]) -> bool:
    """Whether the broker can be asked without Spark: confluent-kafka is installed, and there are no options
    for Spark's client, such as for its security."""
    if any(name.startswith("kafka.") for name in options):
        return False
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return False
    return True


def _unreachable(bootstrap: str) -> str | None:
    """What the first of the brokers said, if none takes a connection."""
    refusals = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS):
                return None
        except ValueError:
            refusals.append(f"{address!r} is not host:port")
        except OSError as error:
            refusals.append(error.strerror or str(error))
    return refusals[0]

"""Real servers for tests: started on a free loopback port, and gone with the process that started them.

A server that cannot be started is an error that says what to do, never a skipped test.
"""

from tidegate.testing.servers.broker import kafka
from tidegate.testing.servers.daemon import ServerError
from tidegate.testing.servers.database import postgres
from tidegate.testing.servers.faulty_store import FaultyStore, faulty_store
from tidegate.testing.servers.redis import redis
from tidegate.testing.servers.s3 import S3, s3

__all__ = ["S3", "FaultyStore", "ServerError", "faulty_store", "kafka", "postgres", "redis", "s3"]

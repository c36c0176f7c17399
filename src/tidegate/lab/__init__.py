"""Several machines on this one: hosts with their own network, processes, disk and limits, and what goes wrong
between and on them."""

from tidegate.lab.chaos import Chaos, Deed
from tidegate.lab.disruption import Disruption
from tidegate.lab.host import Host
from tidegate.lab.lab import Lab
from tidegate.lab.link import Link
from tidegate.lab.rtt import RoundTrips
from tidegate.lab.spark import SparkCluster
from tidegate.lab.store import Store

__all__ = ["Chaos", "Deed", "Disruption", "Host", "Lab", "Link", "RoundTrips", "SparkCluster", "Store"]

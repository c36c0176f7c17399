"""Where rows come from."""

from tidegate.sources.files import Files
from tidegate.sources.kafka import Kafka
from tidegate.sources.keys import HotSet, Uniform, Zipf
from tidegate.sources.rate import Constant, Ramp, Rate, Sine, Step, Trace
from tidegate.sources.sensors import Sensors
from tidegate.sources.source import Source
from tidegate.sources.wikipedia import ServerNames, Wikipedia

__all__ = [
    "Constant",
    "Files",
    "HotSet",
    "Kafka",
    "Ramp",
    "Rate",
    "Sensors",
    "ServerNames",
    "Sine",
    "Source",
    "Step",
    "Trace",
    "Uniform",
    "Wikipedia",
    "Zipf",
]

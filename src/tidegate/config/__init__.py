"""The configuration: its keys, where each value may come from, and what is wrong with it.

A later source wins over an earlier one:

    default < Pipeline(config={...}) < tidegate.toml < TIDEGATE_<SECTION>_<KEY> < command line
"""

from tidegate.config.loading import load, parse_settings
from tidegate.config.settings import KEYS, Config

__all__ = ["KEYS", "Config", "load", "parse_settings"]

"""The only door to the parts of Spark that are not its public Python interface."""

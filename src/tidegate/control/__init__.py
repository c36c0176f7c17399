"""A running pipeline seen and steered from outside."""

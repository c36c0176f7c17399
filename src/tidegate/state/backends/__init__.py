"""Ways to hold the state of a node's key groups, behind one interface."""

"""A plan as Spark DataFrames: the streaming query, the handover to a batch, the shuffle of a keyed step."""

"""A plan at work: started, recovered, watched, steered, saved and stopped."""

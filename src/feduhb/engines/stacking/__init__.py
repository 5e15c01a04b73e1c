"""What the stacked engine is made of: schedules, traced chains, layers with a client dimension, steps."""

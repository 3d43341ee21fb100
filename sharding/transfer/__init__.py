"""Move bytes once, hashing them on their way."""

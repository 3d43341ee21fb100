"""Small repos of every kind that is taken, with random weights, saved and loaded as their own libraries do."""

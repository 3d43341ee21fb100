"""What loading a checkpoint costs, and where it fits."""

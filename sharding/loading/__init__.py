"""What loading a checkpoint costs."""

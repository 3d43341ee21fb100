"""What was done: as JSON, as a card."""

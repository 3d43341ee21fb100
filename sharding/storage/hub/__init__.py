"""A repo of a Hub, read and written."""

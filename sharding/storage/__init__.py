"""A folder or a Hub, read and written."""

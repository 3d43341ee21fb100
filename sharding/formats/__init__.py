"""The bytes of files to values and back, one format a room."""

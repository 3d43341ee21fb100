"""What `make demo`, `make pipeline` and `make run` show, with their samples."""

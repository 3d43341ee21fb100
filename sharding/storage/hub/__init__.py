"""Read and write a repo of a Hub."""

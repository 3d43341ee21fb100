"""Read and write a folder or a Hub."""

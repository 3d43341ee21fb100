"""Serve the page: who may ask what, what is kept for whom, and what a link is called."""

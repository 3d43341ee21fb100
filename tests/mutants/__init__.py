"""Small faults put into the code on purpose: a test has to notice each."""

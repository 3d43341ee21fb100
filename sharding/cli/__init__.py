"""The command line: arguments in, words out."""

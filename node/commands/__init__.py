"""The verbs of `shoal`, a module for each group; the command line registers them."""

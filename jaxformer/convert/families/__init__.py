"""One file for each family of checkpoints."""

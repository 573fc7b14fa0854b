"""Families of checkpoints, one file each; `convert.registry` finds a new file by itself."""

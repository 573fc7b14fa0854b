"""Families of checkpoints, one file each; `convert.registry` finds new files automatically."""

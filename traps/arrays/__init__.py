"""Traps of one page, a file each."""

"""Files: atomic writes, checksums and disk space."""

"""Files that are written whole or not at all, their checksums, and the space that they need."""

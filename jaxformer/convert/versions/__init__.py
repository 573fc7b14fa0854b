"""Two versions of transformers: what 4 and 5 make of the same folder, by tables that were measured, not by running either."""

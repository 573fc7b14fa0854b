"""Everything that torch gives for a model on some inputs, recorded once."""

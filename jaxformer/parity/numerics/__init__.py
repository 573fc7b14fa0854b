"""How far two arrays are apart, in which order their axes stand, and float64 throughout."""

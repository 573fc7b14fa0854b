"""Array distances and tolerances, axis order between the two sides, and float64 execution."""

"""Right ports of the exercises, of which some lines are exchanged for bugs."""

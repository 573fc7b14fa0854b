"""Why a module differs: formulas tried on the recorded values."""

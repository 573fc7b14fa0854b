"""Formulas that a module may have computed, one file per subject; phrases for their choices are in `words.py`."""

from jaxformer.parity.diagnose.formulas import attention, layers, placed_attention

HYPOTHESES = (*layers.NORMS, *layers.LAYERS, *placed_attention.HYPOTHESES, *attention.HYPOTHESES)
"""All hypotheses, in the order in which they are tried."""

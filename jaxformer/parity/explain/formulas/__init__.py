"""What a module may have computed: formulas with choices, a file a subject. A new formula or choice is written there alone."""

from jaxformer.parity.explain.formulas import activations, attention, batch_norm, linear, norms, placed_attention, positions

HYPOTHESES = (
    *norms.HYPOTHESES,
    *batch_norm.HYPOTHESES,
    *linear.HYPOTHESES,
    *positions.HYPOTHESES,
    *activations.HYPOTHESES,
    *placed_attention.HYPOTHESES,
    *attention.HYPOTHESES,
)
"""In the order in which they are tried."""

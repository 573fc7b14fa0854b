"""Transformers in JAX that are equal to PyTorch, weight for weight, and can prove it.

Axis letters, the same in every signature, einsum and sharding rule:

    B  batch              D  d_model           V  vocabulary
    T  query length       N  heads             L  layers
    S  key length         K  key/value heads   F  feed-forward width
    H  head width         W  beam width

The wings, bottom to top; each may import only those before it:

    config, errors, inputs, flags, ...      the ground, free of jax
    nn                                      arrays and weights
    models                                  tokens -> logits
    decoding                                logits -> tokens
    data                                    text -> batches
    convert                                 weights between frameworks
    training                                losses, optimizers, the train step, runs
    parity                                  the proof that both frameworks agree
    cli                                     the `jaxformer` command
"""

__version__ = "0.1.0"

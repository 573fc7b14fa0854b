"""Transformers in JAX that are equal to PyTorch, weight for weight, and can prove it.

Axis letters, the same in every signature, einsum and sharding rule:

    B  batch              D  d_model           V  vocabulary
    T  query length       N  heads             L  layers
    S  key length         K  key/value heads   F  feed-forward width
    H  head width         W  beam width

The packages, bottom to top; each may import only those before it:

    config, validation, pytree, ...         the ground: what is asked for, what is refused
    convert                                 weights between frameworks
    parity                                  the comparison of any two models
    nn                                      arrays and weights
    models                                  tokens -> logits
    decoding                                logits -> tokens
    data                                    text -> batches
    training                                losses, optimizers, the train step, runs
    recipes                                 systems trained from end to end
    selfcheck                               our own models against their twins, and the mutants
    cli                                     the `jaxformer` command
"""

__version__ = "0.1.0"

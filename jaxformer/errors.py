"""Every error jaxformer raises on purpose: one line that names the thing, the value found, the value wanted, and what to do."""


class JaxformerError(Exception):
    """The root: `except JaxformerError` catches whatever jaxformer refuses."""


class ConfigError(JaxformerError, ValueError):
    """A configuration that cannot be built."""


class InputError(JaxformerError, ValueError):
    """Data given from outside: token ids, texts, files, flags."""


class CheckpointError(JaxformerError):
    """A run folder or a saved state that cannot be read or written."""


class ConversionError(JaxformerError, ValueError):
    """Weights of two models that do not fit together."""


class ParityError(JaxformerError, AssertionError):
    """Two implementations that should be equal and are not."""


class NonFiniteError(JaxformerError, ArithmeticError):
    """A loss or a gradient became NaN or infinite."""

"""Models as HTML, which notebooks show in place of their text."""

from typing import Any

from flax import nnx

from jaxformer.config.shown import as_table
from jaxformer.io.html_elements import tag, together
from jaxformer.pytree import count_parameters, named_weights


class Shown(nnx.Module):
    """Base class of models: a notebook shows the sizes of their parts, and their configuration."""

    config: Any

    def _repr_html_(self) -> str:
        """Render a table of the model's parts, each with the number of its parameters, and its configuration."""
        parts: dict[str, int] = {}
        for name, leaf in named_weights(self).items():
            part = name.partition(".")[0]
            parts[part] = parts.get(part, 0) + leaf.size
        types = ", ".join(sorted({str(leaf.dtype) for leaf in named_weights(self).values()}))
        rows = [tag("tr", tag("th", part, scope="row"), tag("td", f"{size:,}")) for part, size in parts.items()]
        total = f"{type(self).__name__}: {count_parameters(self):,} parameters, {types}"
        return together(tag("table", tag("caption", total), tag("tbody", *rows))) + as_table(self.config)

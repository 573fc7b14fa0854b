"""What is said of a JAX model that draws random numbers, or gives another output each time."""

from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.run.trace import Traced
from jaxformer.parity.run.unset_arrays import reads_of_unset
from jaxformer.parity.run.unsteady import why_unsteady


def unsteady(traced: Traced) -> str:
    """That it gives another output each time, why and where; '' where it does not. Found out once."""
    if traced.session.unsteady is None:
        why = why_unsteady(traced)
        traced.session.unsteady = f"jax gives another output each time: {why}; take that out" if why else ""
    return traced.session.unsteady


def unset(traced: Traced, site: Site | None = None) -> str:
    """That this call, or any where there is none given, reads what `jnp.empty` left unset, and the line; ''."""
    if traced.session.unset is None:
        traced.session.unset = reads_of_unset(traced)
    reads = traced.session.unset
    line = reads.get(site, "") if site is not None else next(iter(reads.values()), "")
    return line and f"jax reads jnp.empty, which is uninitialised since jax 0.11 (at {line}); use jnp.zeros"


def drawn(traced: Traced) -> str:
    """The same, or that it draws numbers that are the same each time."""
    places = [] if traced.untied else traced.normal_run.draws
    same = f"jax draws random numbers (at {places[0]}), which torch has not: take them out" if places else ""
    return unset(traced) or unsteady(traced) or same

"""Axes that one module alone gives in another order: a relative bias of the wrong sign is a right one transposed.

Wherever axes have one size, an array may be torch's in more than one order. The modules that read it tell which one is meant.
"""

from collections import Counter
from collections.abc import Container

from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.numerics.axis_order import Order
from jaxformer.parity.numerics.metrics import error, over
from jaxformer.parity.report.summarize import alike
from jaxformer.parity.run.isolated import Isolated, Isolation


def in_usual_orders(isolated: Isolated, isolation: Isolation) -> Isolated:
    """The pass again, in the usual orders of axes, if then a maker of arrays in other orders diverges, and fewer other modules
    than before, and none anew; else the pass as it was."""
    odd = odd_orders(isolated, isolation.valid)
    if not odd:
        return isolated
    usual = isolation.run({**isolated.orders, **odd}, corrected=False)
    before, after = wrong_owners(isolated), wrong_owners(usual)
    makers = {mismatch.owner for mismatch in usual.mismatches if mismatch.place in odd}
    return usual if after & makers and after - makers < before else isolated


def wrong_owners(isolated: Isolated) -> set[Site]:
    """Modules whose own code gives other values, rounding set aside."""
    return {mismatch.owner for mismatch in isolated.mismatches if over(error(mismatch.jax, mismatch.torch), "activation")}


def odd_orders(isolated: Isolated, left_out: Container[Site]) -> dict[ArrayKey, Order]:
    """The usual order of each array whose axes stand in another one, where the usual one gives its shape too.

    Usual is what most other modules have for as many axes; torch's own order, where no other module has as many.
    """
    orders = {key: order for key, order in isolated.orders.items() if key.site != CALL and key.site not in left_out}
    shapes = {mismatch.place: mismatch.torch.shape for mismatch in isolated.mismatches if mismatch.place is not None}
    found = {}
    for key, shape in shapes.items():
        if (order := orders.get(key)) is None:
            continue
        path = alike(key.site.path)
        others = (each for other, each in orders.items() if len(each) == len(order) and alike(other.site.path) != path)
        usual = next((each for each, _ in Counter(others).most_common(1)), tuple(range(len(order))))
        if usual != order and [shape[axis] for axis in usual] == [shape[axis] for axis in order]:
            found[key] = usual
    return found

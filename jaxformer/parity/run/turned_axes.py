"""Axes that one module alone gives in another order: a relative bias of the wrong sign is a right one transposed.

Wherever axes have one size, an array may be torch's in more than one order. The modules that read it tell which one is meant.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping

from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.numerics.axis_order import Order
from jaxformer.parity.report.summarize import alike
from jaxformer.parity.run.isolated import Isolated


def odd_orders(isolated: Isolated, left_out: Container[Site]) -> dict[ArrayKey, Order]:
    """The usual order of each array whose axes stand in another one, where the usual one gives its shape too.

    Usual is what most other modules have for as many axes; torch's own order, where no other module has as many.
    """
    orders = {key: order for key, order in isolated.orders.items() if key.site != CALL and key.site not in left_out}
    shapes = {mismatch.place: mismatch.theirs.shape for mismatch in isolated.mismatches if mismatch.place is not None}
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


def clearer(once: Isolated, again: Isolated, odd: Mapping[ArrayKey, Order], diverging: Callable[[Isolated], set[Site]]) -> bool:
    """Whether makers of the odd arrays diverge `again`, in the usual orders, and fewer others than before, and none anew."""
    before, after = diverging(once), diverging(again)
    makers = {mismatch.owner for mismatch in again.mismatches if mismatch.place in odd}
    return bool(after & makers) and after - makers < before

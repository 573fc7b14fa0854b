"""Parity in a test: one call that fails with the report, whose last line is the verdict."""

from typing import Any

from jaxformer.parity.compare import compare
from jaxformer.parity.report.report import Report


def assert_parity(torch_model: Any, jax_model: Any, inputs: tuple[Any, ...], **options: Any) -> Report:
    """Return the report of `compare(torch_model, jax_model, inputs, **options)`; AssertionError with its text unless all is
    equal.

    The pytest fixture of the same name also keeps the report with --parity-report DIR.
    """
    __tracebackhide__ = True
    report = compare(torch_model, jax_model, inputs, **options)
    raise_unless_equal(report)
    return report


def raise_unless_equal(report: Report) -> None:
    """Raise AssertionError with the report's text unless both sides are equal."""
    __tracebackhide__ = True
    if report.exit_code:
        raise AssertionError(str(report))

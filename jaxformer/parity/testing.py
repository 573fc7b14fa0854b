"""Parity in a test: one call that fails with the verdict and the report."""

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
    """Raise AssertionError unless both sides are equal: the verdict, which pytest's summary shows, then the report's text."""
    __tracebackhide__ = True
    if report.exit_code:
        raise AssertionError(f"{report.verdict}\n{report}")

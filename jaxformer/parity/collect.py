"""Results of the checks, collected in one report."""

import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from jaxformer.errors import JaxformerError, message_of
from jaxformer.parity.attribute.comparison import Result, environment
from jaxformer.parity.isolate import first_crash
from jaxformer.parity.numerics.metrics import TOLERANCES
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.reference import Tier
from jaxformer.parity.trace.source_lines import line_of, untold


@untold()
def collected(results: Iterable[Result], tier: Tier, planned: Sequence[str]) -> Report:
    """Collect results in a report. An exception ends it, as a failed stage of the first name in `planned` without a result."""
    report = Report(tier=tier, tolerance=TOLERANCES["activation"][0], environment=environment())
    without_effect: list[str] = []
    inconclusive: list[str] = []
    try:
        for result in results:
            without_effect = without_effect if result.without_effect is None else result.without_effect
            inconclusive += result.inconclusive
            not_covered = [*without_effect, *inconclusive]
            report = replace(report, stages=[*report.stages, result.stage], not_covered=not_covered, **result.more)
    except (Exception, SystemExit) as error:
        done = {stage.name for stage in report.stages}
        name = next((name for name in planned if name not in done), planned[-1])
        says = str(error) if isinstance(error, JaxformerError) else f"{type(error).__name__}: {message_of(error)}"
        if isinstance(error, SystemExit):
            says = f"the code of a model ends the process with sys.exit({error.code!r:.40}); take that out"
        at = f" (at {place})" if (place := line_of(error)) else ""
        failed = Stage(name, "failed", says.strip().split("\n")[0] + at)
        report = replace(report, stages=[*report.stages, failed], traceback="".join(traceback.format_exception(error)))
    return replace(report, stages=[*report.stages, *first_crash()])


def failing(error: BaseException) -> Iterator[Result]:
    """Raise an error in place of the first result."""
    raise error
    yield

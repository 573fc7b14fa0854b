"""The report that a comparison gives: what it found, and the forms in which it is shown."""

from dataclasses import dataclass

from jaxformer.parity.report import strict_json
from jaxformer.parity.report.data import ReportData
from jaxformer.parity.report.html import page
from jaxformer.parity.report.markdown import markdown
from jaxformer.parity.report.text import plain_text


@dataclass(frozen=True)
class Report(ReportData):
    """All that a comparison found; `print(report)` shows it as plain text."""

    def to_json(self) -> str:
        """Everything, as strict JSON; `from_json` reads it again."""
        return strict_json.dump(self, verdict=self.verdict)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """What `to_json` wrote; InputError in one line for anything else."""
        return strict_json.load(cls, text, ignored="verdict")

    def to_markdown(self) -> str:
        """For a pull request or an issue."""
        return markdown(self)

    def to_html(self) -> str:
        """One page that needs no other file and no network."""
        return page(self)

    def __str__(self) -> str:
        return plain_text(self)

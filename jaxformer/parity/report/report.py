"""Report of a comparison: its data and its output formats."""

from dataclasses import dataclass

from jaxformer.parity.report import strict_json
from jaxformer.parity.report.data import ReportData
from jaxformer.parity.report.html import page
from jaxformer.parity.report.markdown import markdown
from jaxformer.parity.report.text import plain_text


@dataclass(frozen=True)
class Report(ReportData):
    """All findings of a comparison; `print(report)` shows it as plain text."""

    def to_json(self) -> str:
        """Serialise the report as strict JSON; `from_json` reads it back."""
        return strict_json.dump(self, verdict=self.verdict)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Parse what `to_json` wrote; InputError in one line for anything else."""
        return strict_json.load(cls, text, ignored="verdict")

    def to_markdown(self) -> str:
        """Render Markdown, for a pull request or an issue."""
        return markdown(self)

    def to_html(self) -> str:
        """Render a self-contained HTML page that needs no other file and no network."""
        return page(self)

    def __str__(self) -> str:
        return plain_text(self)

"""What the tests prove of each model type of transformers, as `jaxformer families` prints it.

    python -m tests.proven

runs every case of the tests of model types (some minutes) and writes jaxformer/convert/proven.json anew.
"""

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE = ROOT / "jaxformer/convert/proven.json"
TESTS = ROOT / "parity_tests/fast/test_model_types.py"
PROOFS = {
    "test_output_and_gradients_are_torchs": ("forward", "gradients"),
    "test_what_is_written_is_what_transformers_wrote": ("bits",),
    "test_they_write_the_same": ("ids",),
}
"""Test -> what it proves of a model type, if all of its cases of the type pass."""


class Proofs:
    """Plugin of pytest: model types by test, of cases that pass and of cases that do not."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], list[bool]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test, or of a setup that fails."""
        found = re.search(r"::(\w+)\[(.*)\]$", report.nodeid)
        if found and found[1] in PROOFS and (report.when == "call" or report.failed):
            (name,) = (part for part in re.split(r"(?<=\d)-|-(?=\d)", found[2]) if not part.isdigit())
            self.outcomes.setdefault((name.partition(",")[0], found[1]), []).append(report.passed)

    def types(self) -> dict[str, list[str]]:
        """Return what is proven of each type."""
        names = sorted({name for name, _ in self.outcomes})
        passed = {key for key, outcomes in self.outcomes.items() if all(outcomes)}
        return {name: [each for test, says in PROOFS.items() if (name, test) in passed for each in says] for name in names}


def main() -> None:
    """Run the tests, and write the file."""
    proofs = Proofs()
    pytest.main([str(TESTS), "-n0", "-m", "", "-k", " or ".join(PROOFS)], plugins=[proofs])
    versions = {name: version(name) for name in ("transformers", "torch", "jax")}
    FILE.write_text(json.dumps({"versions": versions, "types": proofs.types()}, indent=1) + "\n", "utf-8")
    sys.exit(0 if all(map(all, proofs.outcomes.values())) else 1)


if __name__ == "__main__":
    main()

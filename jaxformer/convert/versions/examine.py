"""Checks of a folder, in the order in which they are run."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from jaxformer.convert.versions.finding import ORDER, Finding, FolderReport
from jaxformer.convert.versions.folder import Folder, mapping, read_folder
from jaxformer.convert.versions.refused import check_activations, check_model_type, check_numbers
from jaxformer.convert.versions.rotary import check_rotary
from jaxformer.convert.versions.settings import check_changed, check_head, check_layer_types, check_types, check_windows
from jaxformer.convert.versions.texts import check_generation, check_ids, check_tokenizer
from jaxformer.convert.versions.weights import check_dtype, check_files, check_jaxformer

CHECKS: tuple[Callable[[Folder], Iterator[Finding]], ...] = (
    *(check_model_type, check_activations, check_numbers, check_rotary, check_head, check_changed, check_types),
    *(
        check_layer_types,
        check_windows,
        check_generation,
        check_ids,
        check_tokenizer,
        check_files,
        check_dtype,
        check_jaxformer,
    ),
)
TEXT = "text_config"
"""Key of a model with images, under which the settings of its text model stand."""
WITHIN = (check_rotary, check_changed)
"""Checks of the settings of a text model inside of another."""


def report_of(path: Path) -> FolderReport:
    """Return the report of a folder; InputError if it is no folder of transformers'."""
    findings = examine(path)
    status = "different" if any(it.level in ("differs", "wrong") for it in findings) else "equal"
    return FolderReport(str(path), status, findings)


def examine(path: Path) -> list[Finding]:
    """Find what transformers 4 and 5 make differently of a folder, and what its files contradict each other in.

    No weights are needed: of those that are there, headers are read, and 128 KiB of a head that may be tied. InputError if it
    is no folder of transformers'.
    """
    folder = read_folder(path)
    found = [it for check in CHECKS for it in check(folder)]
    text = mapping(folder.config.get(TEXT))
    within = [it for check in WITHIN for it in check(replace(folder, config=text))]
    found += [replace(it, key=f"{TEXT}.{it.key}") for it in within]
    return sorted(found, key=lambda finding: ORDER.index(finding.level))

"""The notebooks run from their first cell to their last, and show what they say."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
SHOWS = {
    "train-and-look": ["<caption>GPTConfig: 6 fields given", "<caption>GPT: ", "'fhfh. '", "image/png"],
    "verify-a-port": ["DIFFERENT: ", "gelu by tanh", "EQUAL: ", "image/png", "('equal', 'different')"],
}
"""What stands in the outputs of each."""


def test_every_notebook_says_what_it_shows():
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWS)
    assert [path.name for path in NOTEBOOKS if path.stat().st_size > 20_000] == [], "kept without their outputs"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of the kernel's own packages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    ran = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    ran.execute()
    shown = str([output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs])
    assert [words for words in SHOWS[path.stem] if words not in shown] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cell_that_fails_is_noticed(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        nbclient.NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()

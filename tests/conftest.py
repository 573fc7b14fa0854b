"""What the tests share: a small text, a recipe made small, and how a refusal has to look."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jaxtyping
import pytest

from jaxformer.data.corpora import CORPORA, FOLDER
from tests.tiny import WORDS

if TYPE_CHECKING:
    from selenium import webdriver


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About three kilobytes of English-like lines."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=8)).capitalize() + "." for _ in range(80)]
    path = tmp_path_factory.mktemp("text") / "tiny.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def corpus(name: str) -> list[Path]:
    """The files of a corpus on disk; nothing is downloaded for a test."""
    folder = os.environ.get(FOLDER)
    paths = [Path(folder or "") / source.file for source in CORPORA[name].values()]
    for path in paths:
        if not folder or not path.is_file():
            pytest.skip(f"needs {path.name} in the folder named by {FOLDER}")
    return paths


@pytest.fixture(scope="session")
def tiny_shakespeare() -> Path:
    """The text of the plays."""
    return corpus("tinyshakespeare")[0]


@pytest.fixture(scope="session")
def multi30k() -> str:
    """The name of the pairs, all of which are there."""
    corpus("multi30k-de-en")
    return "multi30k-de-en"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator["webdriver.Chrome"]:
    """A browser without a window."""
    from tests.browser import started

    with started(tmp_path_factory.mktemp("chrome")) as browser:
        yield browser


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """refusal(main, arguments): the one line on stderr of a command that has to end with code 2."""
    from jaxformer.cli.flags import run

    def refused(main: Callable[[list[str]], int | None], arguments: list[str], code: int = 2) -> str:
        monkeypatch.setattr("sys.argv", ["command", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            run(main)
        said = capsys.readouterr().err
        assert stop.value.code == code, said
        assert said.endswith("\n"), said
        assert said.count("\n") == 1, said
        return said.strip()

    return refused


@pytest.fixture(scope="module")
def little_to_collect() -> Iterator[None]:
    """Damage is followed by a collection of garbage, which takes seconds where other tests have left many objects."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def untyped() -> Iterator[None]:
    """Calls are not checked by their annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)

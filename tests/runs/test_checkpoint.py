"""What is read back from disk is what was saved, or it is refused in one line: nothing in between."""

import contextlib
import errno
import json
import os
import random
import shutil
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxformer.convert.safetensors import load_weights, save_weights
from jaxformer.errors import CheckpointError
from jaxformer.models import abstract, build
from jaxformer.runs import checkpoint
from jaxformer.runs.checkpoint import digest, load_state, save_state
from jaxformer.runs.folder import RUN, kept_states
from tests.room import room_for
from tests.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("little_to_collect")
ORBAX_IS_LOUD = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Its threads still answer reads of a damaged file when nobody listens any more."""


def state(step: int) -> dict[str, jax.Array]:
    draw = np.random.default_rng(step)
    return {
        "step": jnp.int32(step),
        "w": jnp.asarray(draw.standard_normal((40, 30)), jnp.float32),
        "b": jnp.full(3, 0.5 * step),
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """Checkpoints of steps 4 and 6; the one of step 2 has gone."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    for step in (2, 4, 6):
        save_state(folder, step, state(step))
    return folder


@pytest.fixture
def saved(two, tmp_path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "checkpoints"))


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


def test_the_newest_two_are_kept(saved):
    assert steps_in(saved) == [4, 6]
    assert digest(load_state(saved, state(0))) == digest(state(6))


def test_digest_sees_every_leaf_name_type_and_shape():
    plain = {"a": jnp.zeros(4), "b": jnp.zeros(4)}
    others = [
        {"a": jnp.zeros(4), "c": jnp.zeros(4)},
        {"a": jnp.zeros(4), "b": jnp.zeros((2, 2))},
        {"a": jnp.zeros(4), "b": jnp.zeros(4, jnp.int32)},
        {"a": jnp.zeros(4), "b": jnp.zeros(4).at[3].set(-0.0)},
    ]
    assert len({digest(tree) for tree in [plain, *others]}) == 5


@ORBAX_IS_LOUD
def test_a_flipped_bit_is_never_loaded(two, tmp_path):
    """Either the step is refused, with a warning, or the flip was in a byte that means nothing."""
    wanted, noticed, draw = {step: digest(state(step)) for step in (4, 6)}, 0, random.Random(0)
    for i in range(12):
        folder = Path(shutil.copytree(two, tmp_path / str(i)))
        files = sorted((path for path in (folder / "6").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        path = files[-1 - i % 4]
        flip(path, draw.randrange(8 * path.stat().st_size))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = load_state(folder, state(0))
        assert digest(found) == wanted[int(found["step"])]
        assert (int(found["step"]) == 4) == bool(said) == (folder / "6.damaged").exists()
        noticed += bool(said)
    assert noticed >= 6


def test_our_digest_notices_what_orbax_does_not(saved, monkeypatch):
    """Other data under the old description: the negative control loads it, the digest does not."""
    liar = lambda tree: digest(state(6)) if "w" in tree else digest(tree)  # noqa: E731
    shutil.rmtree(saved / "6")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "digest", liar)
        save_state(saved, 6, state(7))
        assert digest(load_state(saved, state(0))) == digest(state(7))
    with pytest.warns(UserWarning, match=r"step 6: the data are not what was saved .*; set aside, going on from step 4$"):
        assert digest(load_state(saved, state(0))) == digest(state(4))


def test_a_state_of_another_step_is_set_aside(saved):
    (saved / "4").rename(saved / "60")
    assert checkpoint.verdict(saved, 60) == "damaged: it is the state of step 4"
    with pytest.warns(UserWarning, match=r"step 60: it is the state of step 4; set aside, going on from step 6$"):
        assert digest(load_state(saved, state(0))) == digest(state(6))


def test_a_state_of_another_run_is_set_aside(tmp_path):
    for run, steps in (("one", (2,)), ("other", (2, 4))):
        (tmp_path / run).mkdir()
        (tmp_path / run / "config.json").write_text(json.dumps({RUN: run}))
        for step in steps:
            save_state(tmp_path / run / "checkpoints", step, state(step))
    folder = tmp_path / "one/checkpoints"
    shutil.copytree(tmp_path / "other/checkpoints/4", folder / "4")
    assert checkpoint.verdict(folder, 4).startswith("damaged: it is of another run, which has other settings than ")
    with pytest.warns(UserWarning, match=r"step 4: it is of another run, .*; set aside, going on from step 2$"):
        assert digest(load_state(folder, state(0))) == digest(state(2))


@ORBAX_IS_LOUD
def test_a_description_that_is_not_whole_is_damage_for_all(saved):
    (saved / "6/_CHECKPOINT_METADATA").write_text('{"custom')
    assert checkpoint.verdict(saved, 6) == "damaged: its description is damaged"
    with pytest.warns(UserWarning, match=r"step 6: its description is damaged; set aside, going on from step 4$"):
        load_state(saved, state(0))


@ORBAX_IS_LOUD
@pytest.mark.parametrize(
    ("name", "harm", "says"),
    [
        ("_CHECKPOINT_METADATA", Path.unlink, "it has no _CHECKPOINT_METADATA"),
        ("_CHECKPOINT_METADATA", lambda path: path.write_text("[1]"), "its description is damaged"),
        ("state", shutil.rmtree, "it has no state"),
        ("state/_METADATA", Path.unlink, "it has no state/_METADATA"),
        ("state/manifest.ocdbt", Path.unlink, "it has no state/manifest.ocdbt"),
        ("state/ocdbt.process_0", shutil.rmtree, "its arrays are damaged"),
        (".", lambda path: shutil.rmtree(path) or path.touch(), "it is no folder"),
        (".", lambda path: shutil.rmtree(path) or path.mkdir(), "it has no _CHECKPOINT_METADATA"),
    ],
)
def test_what_is_wrong_is_said_in_our_own_words(name, harm, says, saved):
    harm(saved / "6" / name)
    assert checkpoint.verdict(saved, 6) == f"damaged: {says}"
    with pytest.raises(CheckpointError) as caught:
        load_state(saved, state(0), 6)
    assert f"holds no whole checkpoint of step 6: {says}; put it back" in str(caught.value)


@ORBAX_IS_LOUD
def test_names_that_are_not_those_of_its_arrays(saved):
    """They are in the description alone, which no digest covers."""
    described = saved / "6/_CHECKPOINT_METADATA"
    described.write_text(described.read_text().replace('"w"', '"v"', 1))
    assert checkpoint.verdict(saved, 6) == "damaged: its description is damaged"


@ORBAX_IS_LOUD
def test_where_none_is_whole_it_says_what_to_do(saved):
    for step in (4, 6):
        (saved / f"{step}/_CHECKPOINT_METADATA").write_text("")
    with pytest.raises(
        CheckpointError, match=r"holds no whole checkpoint of step 4: .*; put it back, or give --resume without a"
    ):
        load_state(saved, state(0), 4)
    with pytest.raises(
        CheckpointError, match=r"holds no whole checkpoint of this model: .*; put one back, or start another --out$"
    ):
        load_state(saved, state(0))


def test_what_is_set_aside_stays(saved):
    for again in ("", "-2"):
        with pytest.warns(UserWarning, match="step 6 is set aside: the run goes on from step 4$"):
            load_state(saved, state(0), 4)
        assert (saved / f"6.later{again}").is_dir()
        save_state(saved, 6, state(6))


def test_what_may_not_be_read_is_no_damage(saved, monkeypatch):
    monkeypatch.setattr(checkpoint.os, "access", lambda path, _: "6/state" not in str(path))
    assert checkpoint.verdict(saved, 6) == f"not checked: cannot be read: [Errno 13] Permission denied: '{saved}/6/state'"
    with pytest.raises(CheckpointError, match=r"step 6 cannot be read: .*; let this process read it, or move"):
        load_state(saved, state(0))
    assert kept_states(saved) == [4, 6]


def test_a_pipe_is_not_read(saved):
    (path := saved / "6/state/manifest.ocdbt").unlink()
    os.mkfifo(path)
    assert "is a pipe or a device" in checkpoint.verdict(saved, 6)
    with pytest.warns(UserWarning, match=r"step 6: .* is a pipe or a device; give a file; set aside, going on from step 4$"):
        assert digest(load_state(saved, state(0))) == digest(state(4))


@ORBAX_IS_LOUD
@pytest.mark.parametrize("damage", ["emptied", "halved", "deleted"])
def test_damaged_files(two, tmp_path, damage):
    names = [path.relative_to(two) for path in (two / "6").rglob("*") if path.is_file()]
    for i, name in enumerate(names):
        folder = Path(shutil.copytree(two, tmp_path / str(i)))
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        if damage != "deleted":
            (folder / name).write_bytes(data[: len(data) // 2 if damage == "halved" else 0])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = load_state(folder, state(0))
        assert digest(found) == digest(state(int(found["step"]))), name
        assert bool(said) == (int(found["step"]) == 4), name


@ORBAX_IS_LOUD
def test_a_run_goes_on_saving_behind_a_damaged_step(saved):
    shutil.rmtree(saved / "6/state/d")
    with pytest.warns(UserWarning, match="set aside, going on from step 4"):
        load_state(saved, state(0))
    save_state(saved, 5, state(5))
    assert digest(load_state(saved, state(0))) == digest(state(5))


@pytest.mark.parametrize("name", ["\u0662\u0660", "\u00b2", "0020"])
def test_a_folder_of_another_spelling_is_no_step(name, saved):
    shutil.copytree(saved / "6", saved / name)
    assert kept_states(saved) == [4, 6]
    assert load_state(saved, state(0))["step"] == 6
    save_state(saved, 8, state(8))
    assert load_state(saved, state(0))["step"] == 8


def test_a_save_that_orbax_declines_is_no_success(saved):
    with pytest.raises(CheckpointError, match=r"5 was not written: .* holds a later step"):
        save_state(saved, 5, state(5))


@pytest.mark.parametrize(
    ("like", "said"),
    [
        ({"b": jnp.zeros(3, jnp.float16)}, r"step 6: b is float32\[3\], the model wants float16\[3\];"),
        ({"b": np.zeros(3)}, r"step 6: b is float32\[3\], the model wants float64\[3\]; set JAX_ENABLE_X64 as it was;"),
        ({"b": jnp.zeros(4)}, r"step 6: b is float32\[3\], the model wants float32\[4\]"),
        ({"c": jnp.zeros(3)}, r"step 6: c is not there, the model wants"),
        ({"b": None}, r"step 6: b is .*, the model wants none"),
    ],
)
def test_another_model_is_refused(saved, like, said):
    with pytest.raises(CheckpointError, match=f"holds no whole checkpoint of this model: {said}") as caught:
        load_state(saved, state(0) | like)
    assert "\n" not in str(caught.value)
    assert steps_in(saved) == [4, 6], "nothing is set aside for a model that does not fit"


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no checkpoint$"):
        load_state(tmp_path / "nothing", state(0))
    assert not (tmp_path / "nothing").exists()


def read_only(path: Path, *how: object, **more: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


@pytest.mark.parametrize("reason", ["File exists", "Read-only file system"])
def test_nowhere_to_write(saved, tmp_path, monkeypatch, reason):
    """A thread that is left behind would keep the program from ending."""
    (tmp_path / "file").touch()
    folder, before = (tmp_path / "file" if reason == "File exists" else saved), set(threading.enumerate())
    monkeypatch.setattr(os, "mkdir", read_only if folder == saved else os.mkdir)
    with pytest.raises(CheckpointError, match=rf"{folder}/7 cannot be written: {reason}$"):
        save_state(folder, 7, state(7))
    assert set(threading.enumerate()) <= before


@ORBAX_IS_LOUD
def test_no_room_for_a_checkpoint(saved):
    before = {path for path in saved.rglob("*") if path.is_file()}
    with room_for(2000), pytest.raises(CheckpointError, match=r"checkpoints/7 cannot be written: File too large$"):
        save_state(saved, 7, state(7))
    assert {path for path in saved.rglob("*") if path.is_file()} == before
    assert digest(load_state(saved, state(0))) == digest(state(6))


def test_no_names_for_a_checkpoint(saved, monkeypatch):
    disk = {"f_files": 99, "f_favail": 9, "f_frsize": 1, "f_blocks": 2**40, "f_bfree": 2**40, "f_bavail": 2**40}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**disk))
    with pytest.raises(
        CheckpointError,
        match=r"7 cannot be written: No space left on device: it takes up to 32 files and folders, and 9 are free$",
    ):
        save_state(saved, 7, state(7))


@pytest.fixture(scope="module")
def model():
    return jax.jit(lambda key: build(tiny_config(n_layers=1), rngs=key))(jax.random.key(0))


@pytest.fixture
def weights(model, tmp_path) -> Path:
    save_weights(tmp_path / "weights.safetensors", model)
    return tmp_path / "weights.safetensors"


def refused(path: Path) -> str:
    """The line that refuses a weights file."""
    with pytest.raises(CheckpointError) as caught:
        load_weights(path, abstract(tiny_config(n_layers=1)))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def test_weights_come_back_bit_for_bit(weights, model):
    assert digest(load_weights(weights, jax.eval_shape(lambda: model))) == digest(model)
    assert [path.name for path in weights.parent.iterdir()] == [weights.name]


def test_no_room_for_weights(weights, model):
    before = weights.read_bytes()
    with room_for(2000), pytest.raises(CheckpointError, match=r"weights\.safetensors cannot be written: File too large$"):
        save_weights(weights, model)
    assert [path.name for path in weights.parent.iterdir()] == [weights.name]
    assert weights.read_bytes() == before


def test_truncated_weights(weights):
    data = weights.read_bytes()
    for size in (0, 1, 7, 8, 100, len(data) // 2, len(data) - 1):
        weights.write_bytes(data[:size])
        assert "is not a safetensors file" in refused(weights)
    weights.write_bytes(data + b"\0")
    assert "is not a safetensors file" in refused(weights)


def test_every_flip_in_the_header_is_refused_or_means_nothing(weights, model):
    data = weights.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    like, wanted, refusals = jax.eval_shape(lambda: model), digest(model), 0
    for place in range(0, 8 * header, 13):
        weights.write_bytes(data)
        flip(weights, place)
        with contextlib.suppress(CheckpointError):
            assert digest(load_weights(weights, like)) == wanted
            refusals -= 1
        refusals += 1
    assert refusals > header // 4


def test_weights_that_are_not_this_model(weights):
    tensors = safetensors.numpy.load_file(weights)

    def write(**changes: np.ndarray | None) -> None:
        merged = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
        safetensors.numpy.save_file(merged, weights)

    write(**{"norm.bias": None})
    assert "1 missing, first norm.bias" in refused(weights)
    write(extra=np.zeros(1, np.float32))
    assert "1 left over, first extra" in refused(weights)
    write(**{"norm.bias": np.zeros(9, np.float32)})
    assert "norm.bias is float32[9]" in refused(weights)
    write(**{"norm.bias": np.zeros(8, np.float16)})
    assert "norm.bias is float16[8]" in refused(weights)


def test_a_type_that_no_model_has_is_refused(weights):
    tensors = safetensors.numpy.load_file(weights)
    safetensors.numpy.save_file(tensors | {"norm.bias": np.zeros(8, np.complex64)}, weights)
    assert "norm.bias is of type C64; models hold F16, BF16, F32 or F64" in refused(weights)


def test_a_loaded_model_does_not_follow_its_file(weights, model):
    loaded, size = load_weights(weights, jax.eval_shape(lambda: model)), weights.stat().st_size
    with weights.open("r+b") as file:
        file.write(b"\xff" * size)
    assert digest(loaded) == digest(model)


def test_weights_that_cannot_be_read(tmp_path):
    assert "cannot be read" in refused(tmp_path / "nothing")
    assert "cannot be read" in refused(tmp_path)

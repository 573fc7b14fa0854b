"""What a figure shows is what it was given: read back from its images and lines."""

import math

import numpy as np
import pytest

from jaxformer.errors import ConfigError, InputError
from jaxformer.parity.report.report import Report
from jaxformer.plots.attention import draw_alignment, draw_heads
from jaxformer.plots.losses import draw_losses
from jaxformer.plots.masks import draw_masks, usual_masks
from jaxformer.plots.parity import CEILING, FLOOR, draw_errors
from jaxformer.plots.positions import KINDS, draw_positions, similarity, table_of
from jaxformer.plots.style import LINES, write
from tests.plots.conftest import drawn
from tests.reports import different, equal, infinite

WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(5), (2, 3, 4))
"""Of two layers and three heads: four queries, five keys."""


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_positions_are_as_alike_as_they_are_near(kind):
    found = similarity(table_of(kind, 20, 12))
    assert found.mean[0] == pytest.approx(1)
    np.testing.assert_allclose(found.lowest, found.highest, atol=1e-12)


def test_drawn_positions_are_alike_by_chance():
    found = similarity(np.random.default_rng(0).normal(size=(20, 12)))
    assert (found.highest - found.lowest)[1:10].min() > 0.1


def test_rotary_positions_are_alike_by_the_mean_cosine():
    angles = 10000.0 ** -(np.arange(0, 12, 2) / 12)
    wanted = np.cos(np.arange(20)[:, None] * angles).mean(1)
    np.testing.assert_allclose(similarity(table_of("rotary", 20, 12)).mean, wanted, atol=1e-12)


def test_a_position_of_zeros_is_like_no_other():
    table = np.ones((3, 2))
    table[0] = 0
    assert similarity(table).lowest.tolist() == [0.0, 0.0, 0.0]


def test_positions_are_drawn_with_their_similarity():
    table = table_of("sinusoid", 6, 4)
    figure = draw_positions(table, "sinusoid")
    np.testing.assert_array_equal(drawn(figure)[0], table)
    (line,) = figure.axes[1].get_lines()
    np.testing.assert_array_equal(line.get_ydata(), similarity(table).mean)


MASKS = """
1....  11...  1....  111..  1....  11...
11...  111..  11...  111..  11...  11...
111..  .111.  .11..  111..  111..  111..
1111.  ..111  ..11.  111..  111..  1111.
11111  ...11  ...11  111..  111..  11111
"""


def test_masks_are_as_drawn_here():
    found = usual_masks(5, window=2, prefix=2, padding=2)
    rows = ["  ".join("".join(".1"[int(key)] for key in mask[row]) for mask in found.values()) for row in range(5)]
    assert rows == MASKS.strip().splitlines()
    figure = draw_masks(found)
    meshes = [axes.collections[0].get_array() for axes in figure.axes]
    np.testing.assert_array_equal(meshes, [*found.values()])
    assert all(axes.yaxis_inverted() for axes in figure.axes), "the first query is on top"


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"window": 9}, {"prefix": 9}, {"padding": 5}])
def test_sizes_that_no_mask_has_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} = "):
        usual_masks(**({"tokens": 5, "window": 2, "prefix": 2, "padding": 1} | wrong))


def test_each_head_has_its_map():
    keys, queries = ["<SOS>", *"$a b"[:3], "<EOS>"], ["$_$", "\n", "x", "y"]
    figure = draw_heads(WEIGHTS, keys, queries, "$title")
    np.testing.assert_array_equal(drawn(figure), WEIGHTS.reshape(6, 4, 5))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["$_$", "⏎", "x", "y"]
    assert figure.axes[4].get_title() == "layer 1, head 1"


@pytest.mark.slow
def test_a_map_grows_with_its_tokens():
    tokens = list("abcdefghi") * 5
    few, many = (draw_heads(np.full((2, 4, n, n), 0.5), tokens[:n], tokens[:n], "") for n in (4, 45))
    assert few.get_size_inches()[0] == 4 * 2.4
    assert many.get_size_inches()[0] == pytest.approx(4 * 45 * 0.12)
    assert [figure.axes[0].get_yticklabels()[0].get_fontsize() for figure in (few, many)] == pytest.approx([6, 6])
    assert draw_heads(np.full((1, 16, 45, 45), 0.5), tokens, tokens, "").get_size_inches()[0] == pytest.approx(16 * 2.4)


def test_an_alignment_has_its_tokens():
    figure = draw_alignment(WEIGHTS[0, 0], list("abcde"), list("wxyz"))
    np.testing.assert_array_equal(drawn(figure)[0], WEIGHTS[0, 0])
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == list("abcde")


def test_losses_of_two_runs_have_a_colour_each():
    curves = {"loss": {1: 3.0, 5: 2.0}, "val_loss": {5: 2.5}}
    lines = draw_losses({"one": curves, "$two$": curves}).axes[0].get_lines()
    assert [line.get_color() for line in lines] == [LINES[0], LINES[0], LINES[1], LINES[1]]
    assert [*map(str, lines[0].get_ydata())] == ["3.0", "2.0"]
    assert [line.get_label() for line in lines[2:]] == [r"\$two\$: batch loss", r"\$two\$: validation loss"]
    assert draw_losses({"one": curves}).axes[0].get_title() == "one"


@pytest.mark.parametrize("report", [equal, different, infinite], ids=lambda make: make.__name__)
def test_errors_over_depth_are_those_of_the_report(report):
    found = report()
    propagated, own, marked, line = draw_errors(found).axes[0].get_lines()
    for drawn_now, errors in ((propagated, "propagated"), (own, "local")):
        wanted = [getattr(module, errors).relative for module in found.modules]
        heights = [CEILING if not math.isfinite(error) else min(max(error, FLOOR), CEILING) for error in wanted]
        assert drawn_now.get_ydata().tolist() == heights
    assert len(marked.get_ydata()) == len(found.diverging)
    assert line.get_ydata()[0] == found.tolerance


def test_a_report_without_modules_is_refused():
    with pytest.raises(InputError, match=r"^the report has no modules to draw: COULD NOT COMPARE: "):
        draw_errors(Report("A", 1e-13))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_file_is_the_same_each_time(suffix, tmp_path):
    paths = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for path in paths:
        write(draw_alignment(WEIGHTS[0, 0], list("abcde"), list("wxyz")), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    write(draw_alignment(WEIGHTS[0, 1], list("abcde"), list("wxyz")), paths[1])
    assert paths[0].read_bytes() != paths[1].read_bytes()

"""Models, configurations and reports as notebooks show them: small, escaped, in the notebook's own colours."""

import re
from dataclasses import replace

import pytest
from flax import nnx

import jaxformer as jf
from jaxformer.config.presets import COPY, PRESETS
from jaxformer.models import abstract
from tests.reports import different, equal, infinite
from tests.tiny import tiny_config

SIZES = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 12}
SEEING = jf.VisionEncoderConfig(**SIZES, image_size=(4, 6), patch_size=(2, 3))
BOTH = jf.DualEncoderConfig(vision=SEEING, text=jf.EncoderConfig(**SIZES, vocab_size=7, context=5), width=8, end=3)


def test_a_configuration_shows_what_was_given():
    html = tiny_config(d_ff=24)._repr_html_()
    assert html.startswith("<table><caption>GPTConfig: 6 fields given, ")
    assert re.findall(r"<th scope=\"row\">(\w+)</th><td>(\w+)</td>", html)[3:5] == [("d_ff", "24"), ("vocab_size", "11")]
    assert jf.OptimizerConfig(name="adam", learning_rate=0.5)._repr_html_().count("<tr>") == 2


@pytest.mark.parametrize(
    "config",
    [tiny_config(), replace(COPY, d_model=8), jf.preset("shared"), SEEING, BOTH],
    ids=["gpt", "copy", "shared", "images", "images and texts"],
)
def test_a_model_shows_its_parts(config):
    model = abstract(config)
    html = model._repr_html_()
    sizes = [int(size.replace(",", "")) for size in re.findall(r"<td>([\d,]+)</td></tr>", html.split("</table>")[0])]
    caption = re.search(r"<caption>(\w+): ([\d,]+) parameters, float32</caption>", html)
    assert caption is not None
    assert (caption[1], int(caption[2].replace(",", ""))) == (type(model).__name__, sum(sizes))
    assert html.endswith(config._repr_html_())


def test_a_models_html_is_no_part_of_its_tree():
    model = jf.excite(jf.abstract(tiny_config()), seed=0)
    assert not [path for path, _ in nnx.iter_graph(model) if "html" in str(path)]


@pytest.mark.parametrize("make", [equal, different, infinite], ids=lambda make: make.__name__)
def test_a_report_shows_its_verdict(make):
    report = make()
    html = report._repr_html_()
    assert html.count("<tr>") == len(report.stages)
    assert ("stack.<wbr>" in html) == bool(report.diverging)
    assert "<script" not in html
    assert len(html) < 10_000


def test_none_sets_a_colour():
    found = [*(config._repr_html_() for config in PRESETS.values()), abstract(tiny_config())._repr_html_()]
    assert not [html for html in [*found, different()._repr_html_()] if "style=" in html or "color=" in html]

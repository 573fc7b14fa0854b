"""No false alarms: clean models are equal and no module is named. `python -m benchmarks.clean` runs 200 of them."""

from dataclasses import fields

import pytest

from benchmarks import clean
from benchmarks.random_models import SIZES, drawn
from jaxformer.config.latent import LatentConfig
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.errors import ParityError
from jaxformer.nn.norms import ScaledNorm
from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.data import Module, Stage
from jaxformer.parity.report.report import Report

HANDFUL = 185, 172, 53
"""One of each kind, with one layer and layer norms; the usual run takes the first."""
SLOW = [pytest.param(number, marks=pytest.mark.slow) for number in HANDFUL[1:]]


@pytest.mark.parametrize("number", [HANDFUL[0], *SLOW])
def test_clean_models_are_equal(number):
    report = clean.compared(number)
    assert report.status == "equal", str(report)
    assert report.diverging == []
    assert [stage.name for stage in report.stages] == list(clean.CHECKS)
    assert len(report.modules) > 5


def test_the_handful_is_of_every_kind_and_small():
    models = [drawn(number) for number in HANDFUL]
    assert {type(config) for config in models} == {GPTConfig, EncoderConfig, EncoderDecoderConfig}
    assert {(config.n_layers, config.norm) for config in models} == {(1, "layer")}


FIXED = {*SIZES, "init", "embedding_std", "balance_loss", "router_z_loss", "source_features"}
LATENT = {field.name for field in fields(LatentConfig)}
ALONE = {
    GPTConfig: set(),
    EncoderConfig: {"layer_embedding"},
    EncoderDecoderConfig: {"layer_embedding", "parallel_residual", "shared_norm", "rotary_short_factors", "rotary_long_factors"}
    | LATENT,
}
"""Options that a kind of model has in name alone."""


def test_every_option_is_drawn():
    models = [drawn(number) for number in range(250)]
    assert {type(config) for config in models} == {*ALONE}
    for kind, alone in ALONE.items():
        for field in fields(kind):
            values = {getattr(config, field.name) for config in models if isinstance(config, kind)}
            never = field.name in FIXED | alone or field.name.endswith("dropout")
            assert (len(values) > 1) != never, field.name


def test_the_same_number_is_the_same_model():
    assert drawn(7) == drawn(7)


def test_a_false_alarm_is_listed_and_refused(monkeypatch, capsys):
    original = ScaledNorm.__call__
    monkeypatch.setattr(ScaledNorm, "__call__", lambda self, x: original(self, x) * (1 + 1e-9))
    with pytest.raises(ParityError, match=r"^0/1 equal$"):
        clean.main(["--count", "1", "--first", str(HANDFUL[0])])
    assert f"{HANDFUL[0]}: " in capsys.readouterr().out


def test_the_last_line_counts(capsys, monkeypatch):
    monkeypatch.setattr(clean, "compared", lambda number: Report("A", 1e-13, [Stage("forward", "equal", "")]))
    clean.main(["--count", "3"])
    assert capsys.readouterr().out.splitlines()[-1] == "3/3 equal"


def test_an_equal_verdict_that_names_a_module_is_a_false_alarm(capsys, monkeypatch):
    none = Error(0.0, 0.0)
    named = Report("A", 1e-13, [Stage("forward", "equal", "")], [Module("norm", "norm", none, none, "", diverging=True)])
    monkeypatch.setattr(clean, "compared", lambda number: named)
    with pytest.raises(ParityError, match=r"^0/2 equal$"):
        clean.main(["--count", "2"])
    assert "\n1: " in capsys.readouterr().out

"""The list of model types, and what it says is proven of each."""

import json

from jaxformer.cli.families import COLUMNS, main
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.convert.registry import MODEL_TYPES
from parity_tests.zoo.model_types import CASES


def test_every_type_is_listed_with_its_proofs(capsys):
    main(["--json"])
    listed = json.loads(capsys.readouterr().out)["types"]
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert [*listed] == sorted(MODEL_TYPES) == [line.split()[0] for line in lines[1:-1]]
    assert {name.partition(",")[0] for name in CASES} == {*MODEL_TYPES}
    for (name, row), line in zip(listed.items(), lines[1:-1], strict=True):
        writes = MODEL_TYPES[name].config in (GPTConfig, EncoderDecoderConfig)
        assert row["proven"] == [*COLUMNS[: len(COLUMNS) if writes else -1]], name
        assert line.split()[2:] == ["yes" if each in row["proven"] else "-" for each in COLUMNS]

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from paths import ROOT

from ppcls.cli.models import main


def test_lists_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "ResNet18", "Mobile*V1"]) == 0
    out = capsys.readouterr().out
    for each in ("ResNet18", "11.69 M", "1.83 G", "224×224", "MobileNetV1", "4.23 M", "0.57 G"):
        assert each in out
    assert "ResNet34" not in out


def test_lists_json_and_says_nothing_else() -> None:
    tool = ROOT / "tools" / "models.py"
    done = subprocess.run(
        [sys.executable, str(tool), "list", "LeNet", "ViT_small*", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == ""
    # 6 filters of 3 x 3 on 28 x 28 pixels, 16 of 6 x 5 x 5 on 10 x 10, then 400, 120, 84 and 1,000 numbers.
    flops = 28 * 28 * 6 * 9 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 1000
    parameters = 60 + 16 * 151 + 401 * 120 + 121 * 84 + 85 * 1000
    assert [each for each in json.loads(done.stdout) if each["name"] == "LeNet"] == [
        {"name": "LeNet", "parameters": parameters, "flops": flops, "input_shape": [1, 28, 28]}
    ]


def test_unknown_names_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "Resnet_50"]) == 1
    assert capsys.readouterr().err == "error: no architecture matches 'Resnet_50'; did you mean 'ResNet50'?\n"
    assert main(["list", "Q*"]) == 1
    assert (
        capsys.readouterr().err == "error: no architecture matches 'Q*'; `list` without a pattern has all\n"
    )

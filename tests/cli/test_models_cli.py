from __future__ import annotations

import json
import subprocess
import sys

import pytest
from paths import ROOT
from runs import GUARD

from ppcls.cli.models import main
from ppcls.zoo import ZOO


def test_list_prints_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "ResNet18", "Mobile*V1"]) == 0
    out = capsys.readouterr().out
    for text in ("ResNet18", "11.69 M", "1.83 G", "224×224", "70.98", "MobileNetV1", "4.23 M", "ssld 77.89"):
        assert text in out
    assert "ResNet34" not in out


def test_list_does_not_import_paddle() -> None:
    code = "import sys; from ppcls.cli.models import main; main(['list']); sys.exit('paddle' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=GUARD)


@pytest.mark.slow
def test_measure_prints_json_only() -> None:
    tool = ROOT / "tools" / "models.py"
    done = subprocess.run(
        [sys.executable, str(tool), "measure", "LeNet", "ViT_small*", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == ""
    # 6 filters of 3 x 3 on 28 x 28 pixels, 16 of 6 x 5 x 5 on 10 x 10, then 400, 120, 84 and 1,000 units.
    flops = 28 * 28 * 6 * 9 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 1000
    parameters = 60 + 16 * 151 + 401 * 120 + 121 * 84 + 85 * 1000
    expected = {
        "name": "LeNet",
        "parameters": parameters,
        "flops": flops,
        "input_shape": [1, 28, 28],
        "top1": {},
    }
    assert json.loads(done.stdout)[0] == expected


def test_unknown_name_suggests_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "Resnet_50"]) == 2
    assert capsys.readouterr().err == "error: no architecture matches 'Resnet_50'; did you mean 'ResNet50'?\n"
    assert main(["list", "Q*"]) == 2
    assert capsys.readouterr().err.endswith("; `list` without a pattern prints all names\n")


def test_measure_speed_adds_images_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "LeNet", "--speed"]) == 0
    assert "images/s per core" in capsys.readouterr().out


def test_list_ignores_case_and_starts_with_published_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "*resnet*", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert {"ResNet50", "ResNet18_vd"} <= set(names)
    published = [bool(ZOO[name].top1 or ZOO[name].package) for name in names]
    assert set(published) == {True, False}
    assert published == sorted(published, reverse=True)

"""The search for settings: spaces, trials, pruning, resuming and the page."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppcls.cli import train as cli
from ppcls.config.base.overrides import Override
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.search import tune as module
from ppcls.search.space import Choices, NumberRange, read_space

RATE = "Optimizer.lr.learning_rate"


def test_spaces_are_ranges_and_choices() -> None:
    space = read_space({"a": "0.1..1", "b": "log:1e-5..1e-2", "c": "3..20", "d": ["x", {"y": 1}]})
    assert space == {
        "a": NumberRange(0.1, 1, False),
        "b": NumberRange(1e-5, 1e-2, True),
        "c": NumberRange(3, 20, False),
        "d": Choices(("x", "{y: 1}")),
    }


def test_choices_keep_their_type() -> None:
    values = ["1e5", 1e5, "on", True, "010", 8, None, "null"]
    space = read_space({"key": values})["key"]
    assert isinstance(space, Choices)
    assert [Override.parse(f"key={text}").value for text in space.values] == values


@pytest.mark.parametrize("value", ["1", "2..1", "log:0..1", [], 3, "a..b"])
def test_invalid_space_is_an_error(value: object) -> None:
    with pytest.raises(UserError, match="key: expected "):
        read_space({"key": value})
    with pytest.raises(UserError, match="no search space"):
        read_space({})


def test_missing_optuna_is_an_error(make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install '\.\[tune\]'"):
        run(make_config(), read_space({RATE: "1..2"}), 1, tmp_path, print)


def run(config: Config, *arguments: Any) -> str:
    return module.tune(config.model_dump(mode="json"), config.Metric.Eval[0], *arguments)


def test_config_without_evaluation_is_an_error(make_config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    tree = make_config().model_dump(mode="json")
    with pytest.raises(UserError, match=r"needs DataLoader\.Eval and Global\.eval_during_train: True"):
        module.tune(tree, None, read_space({RATE: "1..2"}), 1, tmp_path, print)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces training: the metric after two epochs is 1 - rate."""
    pytest.importorskip("optuna")
    rates: list[float] = []

    def train(trial, values, _config, _name, output_dir):
        import optuna

        rate = float(values[RATE])
        rates.append(rate)
        (output_dir / f"trial_{trial.number:04d}").mkdir()
        trial.set_user_attr("values", values)
        for epoch in (1, 2, 3):
            trial.report(1 - rate, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 1 - rate

    monkeypatch.setattr(module, "_train", train)
    monkeypatch.setattr(module, "_draw", lambda *_: None)  # takes most of the time
    return rates


def test_search_finds_the_best_rate_prunes_and_resumes(make_config, tmp_path: Path, trained) -> None:
    config, space, lines = make_config(), read_space({RATE: "log:0.001..0.9"}), []
    run(config, space, 12, tmp_path, lines.append)
    assert len(trained) == 12
    assert any("pruned" in line for line in lines)
    text = run(config, space, 14, tmp_path, lines.append)
    assert len(trained) == 14
    assert f"top1 {1 - min(trained):.4f}: -o {RATE}={min(trained)!r};" in text
    assert not any("other settings" in line for line in lines)
    changed = config.model_copy(update={"Global": config.Global.model_copy(update={"epochs": 7})})
    run(changed, space, 14, tmp_path, lines.append)
    assert f"Global.epochs was {config.Global.epochs} and is now 7; choose another" in lines[-1]
    page = (tmp_path / "tune.html").read_text()
    assert page.count("<tr>") + page.count('<tr class="strong">') == 15
    assert page.index(repr(min(trained))) < page.index(repr(sorted(trained)[1]))


def test_interrupted_trial_is_repeated(make_config, tmp_path: Path, trained, monkeypatch) -> None:
    train = module._train

    def interrupt(trial, values, *rest):
        if trial.number == 1:
            trained.append(float(values[RATE]))
            raise KeyboardInterrupt
        return train(trial, values, *rest)

    monkeypatch.setattr(module, "_train", interrupt)
    config, space = make_config(), read_space({RATE: "0.1..0.9"})
    with pytest.raises(KeyboardInterrupt):
        run(config, space, 3, tmp_path, print)
    run(config, space, 3, tmp_path, print)
    assert len(trained) == 4
    assert trained[1] == trained[2]


def test_trial_that_gets_worse_is_stopped(make_config, tmp_path: Path, monkeypatch) -> None:
    optuna = pytest.importorskip("optuna")
    process = SimpleNamespace(poll=lambda: None)
    monkeypatch.setattr(module, "start_training", lambda *_: _Block(process))
    monkeypatch.setattr(
        module, "read_evaluations", lambda _: [SimpleNamespace(metrics={"top1": 0.1}, epoch=2)]
    )
    trial = SimpleNamespace(
        number=0, set_user_attr=lambda *_: None, report=lambda *_: None, should_prune=lambda: True
    )
    with pytest.raises(optuna.TrialPruned):
        module._train(trial, {}, tmp_path / "config.yaml", "top1", tmp_path)


class _Block:
    def __init__(self, value: object) -> None:
        self.value = value

    def __enter__(self) -> object:
        return self.value

    def __exit__(self, *_: object) -> None:
        return None


def test_search_without_a_complete_trial_is_an_error(make_config, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("optuna")
    process = SimpleNamespace(poll=lambda: 1, returncode=1)
    monkeypatch.setattr(module, "start_training", lambda *_: _Block(process))
    monkeypatch.setattr(module, "last_lines", lambda _: "no such model")
    lines: list[str] = []
    with pytest.raises(UserError, match="every trial failed; the last error: no such model"):
        run(make_config(), read_space({"Arch.name": ["NoNet"]}), 9, tmp_path, lines.append)
    assert lines[1] == "trial 1: failed: no such model: Arch.name=NoNet"
    assert len(lines) == 3  # the search does not repeat the error nine times


@pytest.mark.slow
def test_command_trains_and_writes_the_page(make_yaml, tmp_path: Path, capsys) -> None:
    pytest.importorskip("optuna")
    config = str(make_yaml(Global__use_dali=False, Global__epochs=1))
    space = tmp_path / "space.yaml"
    space.write_text("Arch.name: [ResNet18]\n")
    words = ["-c", config, "--space", str(space), "--search", "Global.seed=1..9", "--trials", "1"]
    assert cli.tune(words) == 0
    text = capsys.readouterr().out
    assert "-o Arch.name=ResNet18 Global.seed=" in text
    assert "data:image/png" in (tmp_path / "run" / "tune.html").read_text()
    assert (tmp_path / "run" / "trial_0000" / "train.log").is_file()

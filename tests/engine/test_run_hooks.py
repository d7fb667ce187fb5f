"""A user's hooks: when they are called, and what their errors do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppcls import RunHook, fit
from ppcls.config.base.errors import ConfigError
from ppcls.engine.core.hooks import load_hooks
from ppcls.errors import UserError


class Recorder(RunHook):
    def __init__(self, fail_at: int | None = None) -> None:
        self.calls: list[object] = []
        self.fail_at = fail_at

    def on_update(self, run):
        self.calls.append(run.state.update)
        if run.state.update == self.fail_at:
            raise RuntimeError("the hook fails")

    def on_evaluation(self, run, record):
        assert record.metrics.keys() == {"top1", "top2"}
        self.calls.append(("evaluation", record.epoch, record.best))

    def on_checkpoint(self, run, names):
        for name in names:
            assert (Path(run.settings.output_dir) / name).is_dir()
        self.calls.append(names)

    def on_end(self, run, error):
        self.calls.append(("end", error if error is None else str(error)))


def test_hooks_are_called_in_the_order_of_the_run(make_config) -> None:
    hook = Recorder()
    config = make_config(Global__use_dali=False, Global__save_steps=3, Global__save_interval=2)
    result = fit(config, hooks=[hook])
    bests = [record["best"] for record in result.history if record["kind"] == "eval"]
    assert bests[0]
    names = [
        ("latest", "best_model"),
        ("latest", "best_model", "epoch_2") if bests[1] else ("latest", "epoch_2"),
    ]
    assert hook.calls == [
        *(1, 2, 3, ("latest",), 4, ("evaluation", 1, True), names[0]),
        *(5, 6, ("latest",), 7, 8, ("evaluation", 2, bests[1]), names[1]),
        ("end", None),
    ]


def test_failing_hook_ends_the_run(make_config) -> None:
    hook = Recorder(fail_at=2)
    config = make_config(Global__use_dali=False)
    with pytest.raises(RuntimeError, match="the hook fails"):
        fit(config, hooks=[hook])
    assert hook.calls == [1, 2, ("end", "the hook fails")]
    assert "ended by an error: the hook fails" in (Path(config.Global.output_dir) / "train.log").read_text()


def test_hooks_of_the_config_are_created() -> None:
    (hook,) = load_hooks([f"{__name__}:Recorder"])
    assert type(hook).__name__ == "Recorder"
    with pytest.raises(UserError, match="has no class 'Recordr'; did you mean 'Recorder'"):
        load_hooks([f"{__name__}:Recordr"])
    with pytest.raises(UserError, match=rf"expected {__name__}:fit to be a subclass of ppcls\.RunHook"):
        load_hooks([f"{__name__}:fit"])
    with pytest.raises(UserError, match=r"Global\.hooks: no module 'no_such_hooks'"):
        load_hooks(["no_such_hooks:Hook"])


def test_hooks_get_their_parameters() -> None:
    (hook,) = load_hooks([{f"{__name__}:Recorder": {"fail_at": 3}}])
    assert isinstance(hook, RunHook)
    assert vars(hook)["fail_at"] == 3
    with pytest.raises(
        UserError,
        match="Recorder does not accept these parameters: got an unexpected keyword argument 'fial_at'",
    ):
        load_hooks([{f"{__name__}:Recorder": {"fial_at": 3}}])


def test_hook_of_an_installed_package_has_a_name(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "their_hooks-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: their-hooks\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[ppcls.hooks]\nkeep-scores = their_hooks:KeepScores\n")
    (tmp_path / "their_hooks.py").write_text("from ppcls import RunHook\nclass KeepScores(RunHook): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    (hook,) = load_hooks(["keep-scores"])
    assert type(hook).__name__ == "KeepScores"
    with pytest.raises(UserError, match="no installed hook 'keep-score'; did you mean 'keep-scores'"):
        load_hooks(["keep-score"])


@pytest.mark.parametrize("item", ["my_parts:", {"a": 1}, {"a:b": {}, "c:d": {}}, 3, "", {"a:B": {1: 2}}])
def test_invalid_hook_in_the_config_is_an_error(make_config, item) -> None:
    with pytest.raises(
        ConfigError, match=r"Global\.hooks\[0\].*expected module:Class such as my_parts:MyHook"
    ):
        make_config(Global__hooks=[item])

"""Names of files and folders to write: their suffixes, and addresses in object storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppcls.bench.loader.write_config import check_new_file
from ppcls.classifier import Plot, Predictions
from ppcls.cli.eval import evaluate
from ppcls.cli.infer import infer
from ppcls.cli.results.runs import runs
from ppcls.errors import UserError
from ppcls.files.outputs import check_suffix, local_output


@pytest.mark.parametrize("name", ["x.xlsx", "x.XLS", "x.ods"])
def test_a_table_for_a_spreadsheet_is_written_as_csv(name: str) -> None:
    with pytest.raises(UserError) as caught:
        check_suffix("--out", Path(name), ".csv", ".jsonl", ".parquet")
    assert str(caught.value) == (
        f"--out {name}: expected a file name that ends in .csv, .jsonl or .parquet; use x.csv, which "
        "spreadsheets such as Excel open"
    )


@pytest.mark.parametrize("name", ["x.csv", "X.CSV", "/dev/stdout"])
def test_accepted_names(name: str) -> None:
    check_suffix("--out", Path(name), ".csv")


@pytest.mark.parametrize(
    ("url", "tool"),
    [
        ("s3://bucket/x.csv", "aws s3 cp"),
        ("GS://bucket/x.csv", "gcloud storage cp"),
        ("az://bucket/x.csv", "azcopy copy"),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_addresses_are_no_paths(kind: type[str] | type[Path], url: str, tool: str) -> None:
    """A path of pathlib has lost a slash, and would name a local folder."""
    with pytest.raises(UserError, match=f"expected a path on this machine.*{url}.*{tool}"):
        local_output("output", kind(url))


@pytest.mark.parametrize("name", ["x.xlsx", "x.txt", "s3://bucket/x.csv"])
def test_python_methods_check_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for write in (Predictions([], []).to_csv, Plot(b"").save):
        with pytest.raises(UserError, match=r"path( x\.(xlsx|txt))?: expected a (file name|path)"):
            write(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["infer", "--out", "s3://bucket/x.csv"], "argument --output/--out: expected a path on this machine"),
        (["eval", "--errors", "gs://bucket/x.csv"], "argument --errors: expected a path on this machine"),
        (["runs", "--html", "az://bucket/x.html"], "argument --html: expected a path on this machine"),
    ],
)
def test_commands_reject_addresses(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {"infer": infer, "eval": evaluate, "runs": runs}
    with pytest.raises(SystemExit):
        commands[words[0]]([*words[1:], *([] if words[0] == "runs" else ["--model", "run"]), "x"])
    assert problem in capsys.readouterr().err


def test_pages_and_configs_have_their_suffixes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert runs([".", "--html", "runs.csv"]) == 2
    assert "--html runs.csv: expected a file name that ends in .html or .htm" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"--write-config x\.json: .* ends in \.yaml or \.yml"):
        check_new_file(Path("x.json"))
    assert not list(tmp_path.iterdir())

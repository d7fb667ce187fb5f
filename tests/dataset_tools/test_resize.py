"""Resized copies of folders: complete, resumed after a kill, rejected; the source does not change."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from PIL import Image
from zoo import encode, make_zoo

from ppcls.dataset_tools.resize import ResizeJob, plan_resize, resize_tree
from ppcls.errors import UserError

MOST = 16


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two classes, of which one is empty; eight images, two of them small; lists; and a bad image's place."""
    root = tmp_path / "source"
    (root / "empty").mkdir(parents=True)
    (root / "cats" / "more").mkdir(parents=True)
    for number in range(8):
        image = Image.effect_noise((40, 30) if number < 6 else (20, 12), 50)
        kind, ending = (("JPEG", "JPG"), ("PNG", "png"))[number % 2]
        folder = root / "cats" / ("more" if number % 3 else ".")
        (folder / f"{number} ü.{ending}").write_bytes(encode(image, kind))
    (root / "train_list.txt").write_text("cats/0 ü.JPG 0\n")
    for path in root.rglob("*.*"):
        os.utime(path, ns=(0, 10**18 + 123_456_789))
    return root


def begin(source: Path, target: Path, **options: object) -> ResizeJob:
    return plan_resize(source, target, MOST, 90, **options)  # type: ignore[arg-type]


def run(resizing: ResizeJob) -> dict[str, str]:
    outcomes = resize_tree(resizing, 2, lambda _files: None)
    return {path.name: outcome.done for path, outcome in outcomes.items()}


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns a value that changes if a file is written again or modified."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_resize_keeps_the_tree(source: Path, tmp_path: Path) -> None:
    before, target = state(source), tmp_path / "deep" / "out"
    done = run(begin(source, target))
    assert sorted(done.values()) == ["copied"] * 2 + ["other"] + ["shrunk"] * 6
    assert state(source) == before
    made = state(target)
    del made["resize.json"]
    assert made.keys() == before.keys()
    assert (target / "empty").is_dir()
    for name, (inode, time, data) in made.items():
        assert inode != before[name][0], "no link: who edits the copy does not edit the source"
        assert time == before[name][1]
        kind = done[Path(name).name]
        assert (data != before[name][2]) == (kind == "shrunk")
        if kind != "other":
            with Image.open(target / name) as image:
                assert min(image.size) == (MOST if kind == "shrunk" else 12)


def test_resize_skips_finished_files(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    run(begin(source, target))
    before = state(target)
    del before["resize.json"]
    again = run(begin(source, target))
    assert sorted(again.values()) == ["other"] + ["there"] * 8
    after = state(target)
    del after["resize.json"]
    assert after == before


def test_resize_repeats_changed_files(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    run(begin(source, target))
    changed = next(source.rglob("1 *"))
    changed.write_bytes(encode(Image.new("L", (100, 50), 77), "PNG"))
    assert [name for name, done in run(begin(source, target)).items() if done == "shrunk"] == [changed.name]
    with Image.open(target / changed.relative_to(source)) as image:
        assert (image.size, image.getpixel((3, 3))) == ((32, 16), 77)


@pytest.mark.parametrize("killed_after", [1, 4, 8])
def test_killed_resize_resumes(source: Path, tmp_path: Path, killed_after: int) -> None:
    target = tmp_path / "out"
    whole = run(begin(source, tmp_path / "whole"))
    child = os.fork()
    if not child:
        done: list[int] = []

        def advance(files: int) -> None:
            done.append(files)
            if len(done) == killed_after:
                os.kill(os.getpid(), signal.SIGKILL)

        resize_tree(begin(source, target), 2, advance)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (target / "cats" / ".0123abcd.0 ü.JPG").write_bytes(b"half an ima")  # what a kill may leave, for certain
    done = run(begin(source, target))
    assert done.keys() == whole.keys()
    assert sum(each == "there" for each in done.values()) >= killed_after - 1
    contents = [
        {name: data for name, (_, _, data) in state(tmp_path / each).items()} for each in ("out", "whole")
    ]
    assert contents[0] == contents[1], "the same bytes, and nothing left of the first try"


def test_resize_keeps_hidden_files_of_source(source: Path, tmp_path: Path) -> None:
    hidden = source / "cats" / ".0123abcd.0 ü.JPG"
    hidden.write_bytes(next(source.rglob("0 *")).read_bytes())
    for _ in range(2):
        run(begin(source, tmp_path / "out"))
        assert (tmp_path / "out" / hidden.relative_to(source)).exists()


def test_resize_skips_bad_images(source: Path, tmp_path: Path) -> None:
    (source / "cats" / "half.jpg").write_bytes(make_zoo()["half a jpeg"])
    (source / "cats" / "gone.png").symlink_to("nowhere.png")
    outcomes = resize_tree(begin(source, tmp_path / "out"), 2, lambda _files: None)
    bad = {path.name: outcome.reason for path, outcome in outcomes.items() if outcome.done == "bad"}
    assert bad.keys() == {"half.jpg", "gone.png"}
    assert bad["half.jpg"].startswith("the image can't be decoded: image file is truncated")
    assert bad["gone.png"] == "no such file or directory"
    assert len(outcomes) == 11
    assert not any((tmp_path / "out" / "cats" / name).exists() for name in bad)


def test_resize_accepts_resized_folder(source: Path, tmp_path: Path) -> None:
    run(begin(source, tmp_path / "first"))
    run(plan_resize(tmp_path / "first", tmp_path / "second", 8, 90))
    assert '"max_size": 8' in (tmp_path / "second" / "resize.json").read_text()


def test_plan_resize_rejects_wrong_folders(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        begin(tmp_path / "gone", tmp_path / "out")
    for inside in (source, source / "out", source / ".." / "source" / "cats"):
        with pytest.raises(UserError, match="which must not change; choose another folder with --out"):
            begin(source, inside)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").touch()
    with pytest.raises(UserError, match="was not created by this tool"):
        begin(source, mine)
    with pytest.raises(UserError, match=r"no images; expected files that end in \.jpg"):
        begin(mine, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    begin(source, tmp_path / "out")
    with pytest.raises(
        UserError, match="was created with other settings: max_size was 16 and is now 17; remove the folder"
    ):
        plan_resize(source, tmp_path / "out", 17, 90)


def test_plan_resize_rejects_links_out_of_source(source: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far.png").write_bytes(encode(Image.new("L", (40, 40)), "PNG"))
    (source / "dogs").symlink_to(elsewhere)
    with pytest.raises(UserError, match="dogs is a link to a folder, or leads out of"):
        begin(source, tmp_path / "out")
    run(begin(source, tmp_path / "out", follow_links=True))
    assert (tmp_path / "out" / "dogs" / "far.png").is_file()
    assert not (tmp_path / "out" / "dogs").is_symlink()
    (source / "dogs").unlink()
    (source / "cats" / "link.png").symlink_to(elsewhere / "far.png")
    with pytest.raises(UserError, match=r"link\.png is a link to a folder, or leads out of"):
        begin(source, tmp_path / "other")

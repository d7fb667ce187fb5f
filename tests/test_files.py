"""Atomic files and folders, and retries."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ppcls.cli.command import write_output
from ppcls.engine.checkpoint.output_lock import OutputLock
from ppcls.errors import UserError
from ppcls.files import (
    LogWriter,
    append_text,
    atomic_path,
    atomic_write,
    escape_controls,
    new_folder,
    open_regular,
    print_error,
    read_regular,
    retry_io,
    write_text,
)
from ppcls.files.temporary import temporary_sibling


def test_atomic_write_creates_the_file_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with atomic_write(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def fail_in_atomic_write(path: Path, error: BaseException) -> None:
    with atomic_write(path) as file:
        file.write(b"half")
        raise error


def test_atomic_write_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="disk"):
        fail_in_atomic_write(path, RuntimeError("disk"))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fail_in_atomic_write(tmp_path / "a", KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == []


def test_atomic_write_error_names_the_final_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with pytest.raises(OSError, match="No space left") as caught:  # names no file
        fail_in_atomic_write(path, OSError(errno.ENOSPC, "No space left on device"))
    assert caught.value.filename == str(path)
    missing = tmp_path / "missing" / "model.bin"
    with pytest.raises(FileNotFoundError) as gone:  # names the temporary file
        write_text(missing, "text")
    assert gone.value.filename == str(missing)
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError) as unrelated:
        fail_in_atomic_write(path, FileNotFoundError(errno.ENOENT, "No such file", str(other)))
    assert unrelated.value.filename == str(other)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_append_text_error_names_the_file() -> None:
    file = Path("/dev/full").open("a", encoding="utf-8")  # noqa: SIM115 - closing it fails, too
    with pytest.raises(OSError, match="No space left") as caught:
        append_text(file, "line\n")
    assert caught.value.filename == "/dev/full"
    with pytest.raises(OSError, match="No space left"):
        file.close()


def test_write_text_does_not_change_an_open_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_text(path, "old")
    with path.open() as reader:
        write_text(path, "néw")
        assert reader.read() == "old"
    assert path.read_text(encoding="utf-8") == "néw"


def test_atomic_path_keeps_suffix_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    with atomic_path(path) as temporary:
        assert temporary.parent.parent == tmp_path
        assert temporary.parent.name.startswith(".")
        assert temporary.suffix == ".png"
        temporary.write_bytes(b"png")
    assert path.read_bytes() == b"png"


def test_atomic_path_without_a_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a"):
        pass


def test_write_text_uses_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "atomic", "")
    rights = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")]
    assert rights[0] == rights[1]


def test_new_folder_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "data" / "digits"
    with new_folder(path) as temporary:
        (temporary / "list.txt").write_text("x")
        assert not path.exists()
    assert (path / "list.txt").read_text() == "x"
    assert list(path.parent.iterdir()) == [path]


def fail_in_new_folder(path: Path) -> None:
    with new_folder(path) as temporary:
        (temporary / "list.txt").write_text("x")
        raise RuntimeError("disk")


def test_new_folder_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="disk"):
        fail_in_new_folder(tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []


def create_during_the_block(path: Path) -> None:
    with new_folder(path):
        path.mkdir()
        (path / "mine").touch()


def test_new_folder_never_replaces_a_folder(tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    with pytest.raises(FileExistsError), new_folder(tmp_path / "early"):
        pass
    with pytest.raises(FileExistsError):
        create_during_the_block(tmp_path / "late")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["early", "late"]
    assert (tmp_path / "late" / "mine").exists()


class Drive:
    """Fails ``times`` times, and then works."""

    def __init__(self, number: int, times: int) -> None:
        self._number, self._times = number, times
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._times:
            raise OSError(self._number, "failed")
        return "read"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN])
def test_retry_io_retries_transient_errors(number: int) -> None:
    drive = Drive(number, 2)
    assert retry_io(drive, delays=(0.0, 0.0)) == "read"
    assert drive.calls == 3


def test_retry_io_ends_after_the_last_delay() -> None:
    drive = Drive(errno.EIO, 9)
    with pytest.raises(OSError, match="failed"):
        retry_io(drive, delays=(0.0, 0.0))
    assert drive.calls == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT])
def test_retry_io_raises_permanent_errors_at_once(number: int) -> None:
    drive = Drive(number, 1)
    with pytest.raises(OSError, match="failed"):
        retry_io(drive, delays=(100.0,))
    assert drive.calls == 1


@pytest.mark.parametrize("sync_each", [True, False])
def test_new_folder_accepts_subfolders(tmp_path: Path, sync_each: bool) -> None:
    with new_folder(tmp_path / "new", sync_each=sync_each) as temporary:
        (temporary / "a").mkdir()
        (temporary / "a" / "b").write_text("c")
    assert (tmp_path / "new" / "a" / "b").read_text() == "c"


def test_open_regular_reads_files_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"text"
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"), open_regular(tmp_path / "fifo"):
        pass


def test_read_regular_huge_file_raises_before_reading(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    assert read_regular(tmp_path / "file") == b"text"
    os.truncate(tmp_path / "file", 40 << 30)  # sparse
    with pytest.raises(OSError, match="42949672960 bytes; expected at most 1073741824"):
        read_regular(tmp_path / "file")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café 猫\tcat\n", "café 猫\tcat\n"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m\x85\x7f", "\\u009b31m\\u0085\\u007f"),
        ("gpj.\u202eexe\u2066\u200f", "gpj.\\u202eexe\\u2066\\u200f"),
        ("a\rb\x0bc\u2028d", "a\\x0db\\x0bc\\u2028d"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(
    text: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert escape_controls(text) == shown
    write_output(text)
    print_error(text.rstrip("\n"))
    captured = capsys.readouterr()
    assert captured.out == shown
    assert captured.err == shown.rstrip("\n") + "\n"
    log = LogWriter(tmp_path / "train.log")
    log.message(text)
    log.close()
    assert (tmp_path / "train.log").read_text(encoding="utf-8").endswith(shown.rstrip("\n") + "\n")
    line = json.dumps({"name": text}, ensure_ascii=False)
    assert json.loads(escape_controls(line)) == {"name": text}


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["link", "dangling link", "loop", "pipe", "folder"])
def test_log_that_is_a_link_or_a_pipe_is_rejected(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    victim = tmp_path / "victim"
    if kind == "link":
        victim.write_text("mine")
        log.symlink_to(victim)
    elif kind == "dangling link":
        log.symlink_to(victim)
    elif kind == "loop":
        log.symlink_to(log)
    elif kind == "pipe":
        os.mkfifo(log)
    else:
        log.mkdir()
    with pytest.raises(IsADirectoryError if kind == "folder" else UserError):
        LogWriter(log)
    log.rename(tmp_path / ".lock")
    with pytest.raises(IsADirectoryError if kind == "folder" else UserError):
        OutputLock(tmp_path, timeout=0.1)
    assert not victim.exists() or victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["x" * 251 + ".png", "é" * 125 + ".jpg", "x" * 255, "x." + "y" * 253])
def test_names_of_the_maximum_length_can_be_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert temporary_sibling(path).suffix in (path.suffix, "")
    assert temporary_sibling(path.with_name("x" * 251 + ".png")).suffix == ".png"
    write_text(path, "content")
    assert path.read_text() == "content"
    with new_folder(path.with_name("f" + name[1:])) as folder:
        folder.joinpath("x").touch()
    assert len(list(tmp_path.iterdir())) == 2


# The temporary files of each function, and the same names of the user's own files.
KILLED = {
    "new_folder": ("new_folder(Path(sys.argv[1]))", [".0123abcd.other"]),
    "atomic_path": ("atomic_path(Path(sys.argv[1]))", [".0123abcd.other", ".target"]),
    "temporary_folder": (
        "temporary_folder('program')",
        ["ppcls-runs", "ppcls-program-abcdefgh", "ppcls-my-pictures", "ppcls-temporary-program-abcdefgh"],
    ),
}


@pytest.mark.parametrize("kind", KILLED)
def test_files_of_a_killed_process_are_removed_by_the_next_one_but_not_those_of_a_running_one(
    kind: str, tmp_path: Path
) -> None:
    call, own = KILLED[kind]
    code = (
        "import sys; from pathlib import Path\n"
        "from ppcls.files import atomic_path, new_folder\n"
        "from ppcls.files.temporary import temporary_folder\n"
        f"with {call} as path:\n"
        "    file = path if path.parent.name.startswith('.') else path / 'weights'\n"
        "    file.write_bytes(bytes(1 << 20)); print(flush=True); sys.stdin.readline(); file.unlink()\n"
        "    if path == file: path.touch()"
    )
    for name in own:
        private = not name.startswith("ppcls-temporary")  # a long name that is not private is not ours either
        (tmp_path / name).mkdir(mode=0o700 if private else 0o755)
        (tmp_path / name / "mine").touch()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, tmp_path / "target"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def megabytes() -> int:
        return sum(path.stat().st_size == 1 << 20 for path in tmp_path.rglob("*"))

    with start() as killed, start() as running:
        assert megabytes() == 2
        killed.kill()
        killed.wait()
        with start() as last:
            assert megabytes() == 2
            last.communicate(b"\n")
        assert last.returncode == 0
        assert megabytes() == 1
        running.kill()
    left = {path.name for path in tmp_path.iterdir() if (path / "mine").exists()}
    assert left == set(own)

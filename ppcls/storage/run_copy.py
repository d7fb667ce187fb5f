"""Mirrors the output folder of a run in object storage.

Decisions:
- The objects have the names of the local files. Links such as ``latest`` do not exist in object storage: the
  object ``links.json`` lists them, and is written after everything that it names.
- A checkpoint is there when its manifest is there. The manifest is uploaded last and removed first, so a
  process killed in between leaves a checkpoint that nobody counts as one, and never loses the one before.
- A checkpoint is removed from the storage only after a newer one is complete and ``links.json`` names it.
- What was downloaded is compared with the digests of the manifest before it counts as a checkpoint.
- A run that trains elsewhere can replace its checkpoints during a download. The links then differ afterwards,
  and the download starts again.
- Checkpoints ``epoch_N`` are not downloaded when a run is resumed on a new machine, and stay in the storage.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.files.objects import Objects, StorageAccessError, StorageError
from ppcls.files.temporary import temporary_sibling
from ppcls.files.urls import is_url, local_path
from ppcls.runtime.launch import read_launch
from ppcls.weights.download import lock_file
from ppcls.weights.manifest import MANIFEST, DamagedError, read_manifest, verify
from ppcls.weights.store import LATEST, Store

LINKS = "links.json"
_DOWNLOADS = 5  # attempts, if a run that trains elsewhere replaces its checkpoints meanwhile
_PROBE = ".probe"  # hidden, so it is no file of a run
_CHECKPOINTS = "checkpoints/"
_ROLE = re.compile(r"latest|best_model(_\d+)?|epoch_\d+")
_TARGET = re.compile(r"checkpoints/step_\d{8,}(_\d+)?")
SAFE_NAME = re.compile(r"(?!\.)[^/\0]+(/(?!\.)[^/\0]+)*")  # no hidden file, and nothing outside the folder


class RunCopy:
    """A run in object storage and its local copy.

    Args:
        url: Address of the run.
        folder: Folder of the copy; default: the folder of this address on this machine.
    """

    def __init__(self, url: str, folder: Path | None = None) -> None:
        self.url = url
        self.folder = folder or local_path(url)
        self._objects = Objects(url)
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of change of each uploaded file

    def check_unused(self) -> None:
        """Checks that there is no run at the address.

        Raises:
            UserError: There is one.
        """
        if self._read_links():
            raise UserError(
                f"{self.url} already holds a run; resume it with --resume (Global.checkpoints=auto), or "
                "choose another address with --output (Global.output_dir)"
            )

    def check_writable(self) -> None:
        """Writes and removes an object, so that a run does not train for hours and then fails to upload.

        Raises:
            UserError: The bucket does not exist, or the credentials do not permit to write to it.
            StorageError: The storage can't be written.
        """
        try:
            self._objects.write(_PROBE, b"")
            self._objects.remove([_PROBE])
        except FileNotFoundError as error:
            raise UserError(
                f"{self.url}: can't write to this address: {error}; create the bucket first"
            ) from None

    def pull(self, roles: str = r"latest|best_model(_\d+)?") -> bool:
        """Downloads the run, if the storage has a newer checkpoint than the local copy.

        Args:
            roles: Pattern of the links whose checkpoints are downloaded.

        Returns:
            Whether there is a run, in the storage or in the copy.

        Raises:
            StorageError: The storage can't be read, or returns data that differ from what was written.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(self.folder.with_name(f".{self.folder.name}.lock")):
            links = self._read_links()
            for _ in range(_DOWNLOADS):
                fetched = {role: target for role, target in links.items() if re.fullmatch(roles, role)}
                try:
                    return self._fetch(fetched)
                except (UserError, FileNotFoundError):
                    earlier = links
                    links = self._read_links()
                    if links == earlier:
                        raise
        raise StorageError(
            f"{self.url}: another machine replaced checkpoints during each of {_DOWNLOADS} downloads; "
            "try again later"
        )

    def push(self) -> None:
        """Uploads what has changed: first complete checkpoints, then the other files, and last the links.

        Raises:
            StorageError: The storage can't be written. What it had before is still complete.
        """
        earlier = self._read_links()
        links = self._local_links()
        sizes = self._objects.sizes()
        for target in sorted(set(links.values())):
            self._send_checkpoint(target, sizes)
        self._send_files()
        # A machine that resumed the run has not downloaded the checkpoints that are kept for each epoch.
        kept = {role: target for role, target in earlier.items() if role.startswith("epoch_")}
        links = {**kept, **links}
        if not links:
            return
        if links != earlier:
            self._objects.write(LINKS, (json.dumps(links, indent=2, sort_keys=True) + "\n").encode())
        self._remove_unlinked(links, sizes)

    def _fetch(self, links: Mapping[str, str]) -> bool:
        """Downloads the checkpoints of links and the other files; see `pull`."""
        if not links:
            return Store(self.folder).holds_run()
        if self._is_current(links):
            return True
        sizes = self._objects.sizes()
        for target in sorted(set(links.values())):
            self._fetch_checkpoint(target, sizes)
        self._fetch_files(sizes)
        store = Store(self.folder)
        for role, target in links.items():
            store.link(role, self.folder / target)
        return True

    def _read_links(self) -> dict[str, str]:
        """Returns the checkpoint of each link, such as ``checkpoints/step_00000360``."""
        content = self._objects.read(LINKS)
        if content is None:
            return {}
        try:
            links = json.loads(content)
        except (ValueError, RecursionError) as error:  # a RecursionError: nested too deeply
            raise UserError(f"{self.url}/{LINKS}: damaged: {error}; restore this object") from None
        if not isinstance(links, dict) or not all(
            _ROLE.fullmatch(role) and isinstance(target, str) and _TARGET.fullmatch(target)
            for role, target in links.items()
        ):
            raise UserError(
                f"{self.url}/{LINKS}: expected links such as 'latest' to 'checkpoints/step_00000360', got "
                f"{str(links)[:200]}; restore this object"
            )
        return links

    def _local_links(self) -> dict[str, str]:
        links = {}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.is_symlink() and _ROLE.fullmatch(path.name) and (path / MANIFEST).is_file():
                links[path.name] = f"{_CHECKPOINTS}{path.readlink().name}"
        return links

    def _is_current(self, links: Mapping[str, str]) -> bool:
        """Returns whether the copy has the checkpoints of the links, or a newer one that was not uploaded."""
        latest = self.folder / LATEST
        try:
            ours = read_manifest(latest).serial if latest.is_symlink() else -1
        except DamagedError:
            return False
        theirs = self._manifest(links[LATEST]) if LATEST in links else None
        if theirs is not None and ours > theirs["serial"]:
            return True
        # The links are made last, so a download that was cut off before them is repeated.
        linked = all((self.folder / role).is_symlink() for role in links)
        return linked and all(self._same(target, self._manifest(target)) for target in set(links.values()))

    def _manifest(self, target: str) -> dict[str, Any]:
        content = self._objects.read(f"{target}/{MANIFEST}")
        try:
            manifest = json.loads(content or b"")
            if isinstance(manifest["serial"], int) and isinstance(manifest["files"], dict):
                return dict(manifest)
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise UserError(
            f"{self.url}/{target}/{MANIFEST}: missing or damaged, although {LINKS} names this checkpoint; "
            "restore it, or start a new run at another address"
        )

    def _same(self, target: str, manifest: Mapping[str, Any]) -> bool:
        try:
            return bool(json.loads((self.folder / target / MANIFEST).read_bytes()) == manifest)
        except (OSError, ValueError):
            return False

    def _fetch_checkpoint(self, target: str, sizes: Mapping[str, int]) -> None:
        """Downloads a checkpoint into a hidden folder, compares its digests, and gives it its name."""
        folder = self.folder / target
        manifest = self._manifest(target)
        if self._same(target, manifest):
            return
        names = [MANIFEST, *manifest["files"]]
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_sibling(folder)
        try:
            for name in names:
                if not SAFE_NAME.fullmatch(name) or "/" in name:
                    raise UserError(f"{self.url}/{target}: {name!r} is not a file name of a checkpoint")
                if f"{target}/{name}" not in sizes:
                    raise UserError(f"{self.url}/{target}/{name}: missing; use another checkpoint")
                self._objects.download(f"{target}/{name}", temporary / name)
            try:
                verify(temporary)
            except DamagedError as error:
                raise StorageError(
                    f"{self.url}/{target}: the storage returns other data than were written: {error}"
                ) from None
            if folder.exists():  # another run had this address before
                shutil.rmtree(folder)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _fetch_files(self, sizes: Mapping[str, int]) -> None:
        for name in sizes:
            if not name.startswith(_CHECKPOINTS) and name != LINKS and SAFE_NAME.fullmatch(name):
                self._objects.download(name, self.folder / name)

    def _send_checkpoint(self, target: str, sizes: Mapping[str, int]) -> None:
        folder = self.folder / target
        manifest = f"{target}/{MANIFEST}"
        if manifest in sizes:
            if self._objects.read(manifest) == (folder / MANIFEST).read_bytes():
                return
            self._objects.remove([manifest])  # of a run that had this address before, or was cut off
        for name in read_manifest(folder).files:
            self._objects.upload(folder / name, f"{target}/{name}")
        self._objects.upload(folder / MANIFEST, manifest)

    def _send_files(self) -> None:
        for path in self._files():
            state = path.stat()
            change = (state.st_size, state.st_mtime_ns)
            name = path.relative_to(self.folder).as_posix()
            if self._sent.get(name) != change:
                self._objects.upload(path, name)
                self._sent[name] = change

    def _files(self) -> Iterator[Path]:
        """Yields the files of the run that are neither hidden, nor links, nor parts of checkpoints."""
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            sent = SAFE_NAME.fullmatch(name) and not name.startswith(_CHECKPOINTS) and name != LINKS
            if sent and path.is_file() and not path.is_symlink():
                yield path

    def _remove_unlinked(self, links: Mapping[str, str], sizes: Mapping[str, int]) -> None:
        linked = set(links.values())
        unlinked: dict[str, list[str]] = {}
        for name in sizes:
            target = "/".join(name.split("/")[:2])
            if _TARGET.fullmatch(target) and target not in linked:
                unlinked.setdefault(target, []).append(name)
        for target, names in unlinked.items():
            manifest = f"{target}/{MANIFEST}"
            self._objects.remove(sorted(names, key=lambda name: name != manifest))


class RunUploader:
    """Uploads a run after each checkpoint and at its end. A failure does not stop the run.

    Args:
        copy: The run.
    """

    def __init__(self, copy: RunCopy) -> None:
        self._copy = copy
        self._failed = False

    def describe(self) -> str:
        """Returns a line for the log."""
        return f"uploaded to {self._copy.url} after each checkpoint and at the end; copy: {self._copy.folder}"

    def after_checkpoint(self) -> None:
        """Uploads the run. Reports a failure; the next checkpoint tries again."""
        try:
            self._copy.push()
        except (UserError, OSError) as error:
            self._failed = True
            print_error(
                f"{error}; the run continues, its files are in {self._copy.folder}, and the next checkpoint "
                "tries to upload them again"
            )
        else:
            if self._failed:
                print_error(f"{self._copy.url}: uploaded after earlier failures")
            self._failed = False

    def after_failure(self) -> None:
        """Uploads the log of a run that failed or was stopped. Only reports if this fails too."""
        try:
            self.finish()
        except UserError as error:
            print_error(str(error))

    def finish(self) -> None:
        """Uploads the last changes.

        Raises:
            StorageAccessError: The storage rejects the files until the user changes something.
            StorageError: The storage can't be written.
        """
        try:
            self._copy.push()
        except (UserError, OSError) as error:
            kind = StorageAccessError if isinstance(error, StorageAccessError) else StorageError
            raise kind(
                f"{error}; all files of the run are in {self._copy.folder}; to upload them, start the same "
                "command again on this machine, with --resume (Global.checkpoints=auto)"
            ) from None


def open_run(output_dir: str, *, resumes: bool) -> RunCopy | None:
    """Returns the run at an address in object storage, with its local copy; None for a folder.

    Args:
        output_dir: ``Global.output_dir``.
        resumes: Whether the run resumes from a checkpoint, which is then downloaded.

    Raises:
        UserError: A run that does not resume finds another one at the address, or the bucket does not exist.
        StorageError: The storage can't be read or written.
    """
    if not is_url(output_dir):
        return None
    copy = RunCopy(output_dir)
    if resumes:
        copy.pull()
    else:
        copy.check_unused()
    if read_launch().rank == 0:  # the other ranks upload nothing
        copy.check_writable()
    return copy

"""The folder of the runs that an audit makes, and what an audit takes up there after it was interrupted.

The folder is private to the auditor. After every step the audit writes down which files it has made, with their digests, and
signs that list and everything that the audit depends on with the user's secret. An audit that starts again takes up what
the list has, if the signature, the inputs and the digests are right, and makes everything else again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feduhb.audit.controls import name_run
from feduhb.core.aggregate import unwrap
from feduhb.core.flat import flatten
from feduhb.core.modules import digest_carried
from feduhb.data.federation import Examples, Federation, fingerprint
from feduhb.engines import name_engine
from feduhb.errors import FeduhbError, RunFolderError
from feduhb.methods import values_of
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.files import digest_file, digest_json, disk_errors, read_json, remove, write_atomically
from feduhb.runs.folder import WORK, RunFolder, versions
from feduhb.runs.private import make_work, read_key
from feduhb.runs.run import Run

LIST = "audit-work.json"  # the signed list of files


@dataclass(frozen=True, slots=True)
class Signed:
    """The list of files that an audit has made."""

    inputs: str  # digest of everything that the audit depends on
    files: dict[str, str]  # SHA-256, by path in the work folder
    signature: str


@dataclass(slots=True)
class WorkFolder:
    """The folder of the runs that an audit makes."""

    path: Path
    inputs: str = ""
    key: bytes | None = None  # None: in a temporary folder, of which nothing is taken up
    taken_up: list[str] = field(default_factory=list)  # names of runs and shadows
    # By path: what changes with a file, and its digest.
    _seen: dict[str, tuple[tuple[int, int, int], str]] = field(default_factory=dict)

    def take_up(self) -> None:
        """Keep what an interrupted audit with the same inputs has made, and delete everything else."""
        listed = self._read_list()
        for entry in sorted(self.path.iterdir()):
            if entry.name == LIST:
                continue
            wanted = {n: one for n, one in listed.items() if n.partition("/")[0] == entry.name}
            if wanted and self._list_files(entry) == wanted:
                self.taken_up.append(entry.name)
            else:
                remove(entry)

    def sign(self) -> None:
        """Write down which files are finished, with a signature."""
        if self.key is None:
            return
        files: dict[str, str] = {}
        for entry in self.path.iterdir():
            if entry.name != LIST and not entry.name.startswith("."):
                files |= self._list_files(entry) or {}
        text = json.dumps(asdict(Signed(self.inputs, files, self._compute_signature(files))))
        write_atomically(self.path / LIST, text.encode())

    def finish(self, keep_at: Path | None) -> None:
        """Delete the folder, or move it to where the user wants to keep it."""
        if keep_at is None or self.key is None:
            self.key = None  # if this fails, what is left must not be signed and taken up
            remove(self.path)
            return
        remove(self.path / LIST)
        check_free(keep_at)
        with disk_errors(keep_at):
            shutil.move(self.path, keep_at)

    def describe(self) -> list[str]:
        """Return a note on what was taken up."""
        if not self.taken_up:
            return []
        runs = [name for name in self.taken_up if not name.endswith(".json")]
        shadows = len(self.taken_up) - len(runs)
        named = [*runs, *([f"{shadows} shadow federation{'s'[: shadows != 1]}"] if shadows else [])]
        return [
            f"An interrupted audit was continued. Taken up from the auditor's own folder: {', '.join(named)}."
        ]

    def _read_list(self) -> Mapping[str, str]:
        """Return the files of a list with a valid signature over the same inputs; none if there is no such list."""
        try:
            found = read_json(self.path / LIST, Signed, "it is not used")
        except (OSError, RunFolderError):
            return {}
        is_ours = hmac.compare_digest(found.signature, self._compute_signature(found.files))
        return found.files if is_ours and found.inputs == self.inputs else {}

    def _compute_signature(self, files: Mapping[str, str]) -> str:
        assert self.key is not None  # noqa: S101 (only of a folder that can be taken up)
        return hmac.new(self.key, digest_json([self.inputs, files]).encode(), hashlib.sha256).hexdigest()

    def _list_files(self, entry: Path) -> dict[str, str] | None:
        """Return the digests of a file, or of all files in a folder; None if there is anything else, such as a link."""
        found: dict[str, str] = {}
        for path in [entry, *(entry.rglob("*") if entry.is_dir() and not entry.is_symlink() else ())]:
            if path.is_symlink():
                return None
            if path.is_dir():
                continue
            with contextlib.suppress(FileNotFoundError):  # a temporary file of a shadow that is being trained
                found[path.relative_to(self.path).as_posix()] = self._digest(path)
        return found

    def _digest(self, path: Path) -> str:
        about = path.stat()
        state, name = (about.st_mtime_ns, about.st_size, about.st_ino), str(path)
        if self._seen.get(name, ((), ""))[0] != state:
            self._seen[name] = state, digest_file(path)
        return self._seen[name][1]


@contextlib.contextmanager
def open_work(place: Path | None, inputs: Mapping[str, Any], *, keep: bool) -> Generator[WorkFolder]:
    """Yield a folder for the runs that an audit makes, while nobody else writes into ``place``.

    If the audit is interrupted, the folder stays, so that it can be continued.

    Args:
        place: the folder for audit.json; None: the audit has none, and works in a temporary folder.
        inputs: everything that the audit depends on.
        keep: whether the folder will be moved to ``place``.
    """
    if place is None:
        with tempfile.TemporaryDirectory(prefix="feduhb-audit-") as temporary:
            yield WorkFolder(Path(temporary))
        return
    with RunFolder(place).claim():
        if keep:
            check_free(place / WORK)
        path = make_work(place)
        with RunFolder(path.parent).claim():
            work = WorkFolder(path, digest_json(inputs), read_key())
            work.take_up()
            try:
                yield work
            except BaseException:
                with contextlib.suppress(FeduhbError):  # the first error says more
                    work.sign()
                raise
        if not path.exists():
            remove(path.parent)


def check_free(path: Path) -> None:
    """Raise RunFolderError if there is anything at the path to which the runs of an audit are to be moved."""
    if path.exists() or path.is_symlink():
        raise RunFolderError(
            f"{path} is there already, so the runs of this audit cannot be kept there; delete it, or audit without --keep"
        )


def note_foreign_work(folders: Sequence[Path]) -> list[str]:
    """Return a note for each folder in which there is audit work that this audit did not make."""
    found = [folder / WORK for folder in dict.fromkeys(folders)]
    return [
        f"{path.parent.name}/{WORK} was there before this audit and was not used. "
        + ("It is a link. " if path.is_symlink() else "")
        + "Look at it, and delete it: models in it may know the forgotten data."
        for path in found
        if path.exists() or path.is_symlink()
    ]


def describe_inputs(
    runs: Sequence[Run],
    trained: Run | None,
    retrain: Run | None,
    settings: Mapping[str, Any],
    original_seed: int,
) -> dict[str, Any]:
    """Return everything that the runs of an audit depend on: settings, weights, data, code and versions."""
    first = runs[0]
    return {
        "settings": dict(settings),
        "training": repr(first.settings),
        "request": str(first.forgot),
        "original_seed": original_seed,
        "runs": [_describe_run(run) for run in runs],
        "controls": [run and _describe_run(run) for run in (trained, retrain)],
        "data": _digest_data(first.original),
        "versions": versions(),
    }


def _describe_run(run: Run) -> dict[str, Any]:
    model = run.federation.fresh_model()
    code = [
        run.method,
        run.stop,
        run.engine,
        run.federation.model,
        run.federation.loss,
        run.federation.augment,
        *values_of(run.method).values(),
    ]
    return {
        "weights": digest_weights(run.params),
        "start": [repr(model), digest_weights(flatten(model)), run.federation.start, digest_carried(model)],
        "seed": run.seed,
        "procedure": name_run(run),
        "engine": name_engine(run.engine),
        "block": run.block,
        "code": sorted({one for value in (*code, *model.modules()) for one in _digest_code(value)}),
    }


def _digest_data(federation: Federation) -> str:
    def digest(some: Mapping[str, Examples]) -> dict[str, str]:
        return {client: fingerprint(own) for client, own in some.items()}

    return digest_json(
        [digest(federation.clients), digest(federation.held_out), fingerprint(federation.test)]
    )


def _digest_code(value: Any) -> list[str]:
    """Return a digest of the file that defines a function, or the class of a value; none outside files."""
    inner = unwrap(value)
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    file = getattr(sys.modules.get(str(getattr(kind, "__module__", ""))), "__file__", None)
    if file is None or not Path(file).is_file():
        return []
    return [f"{Path(file).name} {digest_file(Path(file))}"]

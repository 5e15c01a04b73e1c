"""What the audits in a run folder say: verdict, request, and which weights they judged. `feduhb.audit` reads all of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from feduhb.errors import RunFolderError
from feduhb.runs.files import read_json

LAST, EARLIER = "audit.json", "audit-*.json"


@dataclass(frozen=True, slots=True)
class _Verdict:
    word: str


@dataclass(frozen=True, slots=True)
class _Audit:
    """The part of audit.json that is read here."""

    verdict: _Verdict
    forgot: str
    weights_sha256: str
    finished: str


@dataclass(frozen=True, slots=True)
class KeptAudit:
    """An audit that a run folder holds."""

    path: Path
    verdict: str = ""
    forgot: str = ""
    finished: str = ""
    weights_sha256: str = ""  # of the weights that it judged
    problem: str = ""  # why it cannot be read


def read_kept_audits(folder: Path) -> list[KeptAudit]:
    """Return the audits in a run folder, the last one first. One that cannot be read has a problem instead of a verdict."""
    last = folder / LAST
    earlier = sorted(folder.glob(EARLIER), reverse=True)
    return [read_kept_audit(path) for path in (*([last] if last.exists() else []), *earlier)]


def read_kept_audit(path: Path) -> KeptAudit:
    """Return what a file says; a problem instead of a verdict if there is no such file, or it cannot be read."""
    try:
        found = read_json(path, _Audit, "delete it and audit the run again")
    except (OSError, RunFolderError) as error:
        return KeptAudit(path, problem=str(error))
    return KeptAudit(path, found.verdict.word, found.forgot, found.finished, found.weights_sha256)

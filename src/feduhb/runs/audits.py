"""What the audits in a run folder say: verdict, request, and which weights they judged. `feduhb.audit` reads all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from feduhb.errors import RunFolderError
from feduhb.runs.files import read_json

LAST, EARLIER = "audit.json", "audit-*.json"


@dataclass(frozen=True, slots=True)
class _Audit:
    """The part of audit.json that is read here."""

    verdict: Mapping[str, object]
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
    return [_read(path) for path in (*([last] if last.exists() else []), *earlier)]


def _read(path: Path) -> KeptAudit:
    try:
        found = read_json(path, _Audit, "delete it and audit the run again")
    except (OSError, RunFolderError) as error:
        return KeptAudit(path, problem=str(error))
    word = str(found.verdict.get("word", ""))
    return KeptAudit(path, word, found.forgot, found.finished, found.weights_sha256)

"""What the audits in a run folder say: verdict, request, and which weights they judged. `feduhb.audit` reads all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Required

from typing_extensions import TypedDict

from feduhb.errors import RunFolderError
from feduhb.runs.files import read_json

LAST, ALL = "audit.json", "audit*.json"  # earlier audits are audit-TIME.json


class _Audit(TypedDict, total=False):
    """The part of audit.json that is read here."""

    verdict: Required[Mapping[str, object]]
    forgot: Required[str]
    weights_sha256: Required[str]
    finished: Required[str]


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
    paths = sorted(folder.glob(ALL), key=lambda path: (path.name == LAST, path.name), reverse=True)
    return [_read(path) for path in paths]


def _read(path: Path) -> KeptAudit:
    try:
        found = read_json(path, _Audit, "delete it and audit the run again")
    except (OSError, RunFolderError) as error:
        return KeptAudit(path, problem=str(error))
    word = str(found["verdict"].get("word", ""))
    return KeptAudit(path, word, found["forgot"], found["finished"], found["weights_sha256"])

"""Which code a run folder may make its user run: none, unless ``trust.json`` there says that this user permitted it.

A run folder may come from somebody else, so its config.toml is no permission to import what it names. The permission
is signed with this user's secret, see `feduhb.runs.private`, over the code, the folder in which it was found and the
digest of the run's config. It is of no use to another user, nor after the config was changed; the run folder may be
moved.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from feduhb.core.own_code import Code, find_code, is_code, locate
from feduhb.errors import ConfigError, RunFolderError
from feduhb.runs.config import identify_run, parse_config
from feduhb.runs.files import digest_file, digest_json, read_json, write_atomically
from feduhb.runs.folder import TRUST, RunFolder
from feduhb.runs.private import read_key

Part = Literal["data", "method"]


@dataclass(frozen=True, slots=True)
class Trust:
    """The content of trust.json."""

    code: dict[Part, Code]
    signature: str


@dataclass(frozen=True, slots=True)
class Trusted:
    """Code that a command or `open_run` imports when it opens a run."""

    code: str
    file: Path
    sha256: str  # of the file; what the file imports is run too


def list_code(config: Mapping[str, Any]) -> dict[Part, str]:
    """Return the code that a config.toml names: of the data, of the method, of both or of neither."""
    data = str(config.get("federation", {}).get("data", ""))
    method = config.get("unlearn", {}).get("code")
    found: dict[Part, str] = {"data": data} if is_code(data) else {}
    return found if method is None else {**found, "method": str(method)}


def prepare_trust(config: str, data: object, method: Code | None) -> dict[str, bytes]:
    """Return the file that makes a new run trusted, by its name; none if the run has no code of the user's own.

    Args:
        config: the content of its config.toml.
        data: the description of its federation.
    """
    code: dict[Part, Code] = {"data": data} if isinstance(data, Code) else {}
    code |= {} if method is None else {"method": method}
    return {TRUST: _format(tomllib.loads(config), code)} if code else {}


def require_code(folder: RunFolder, part: Part) -> Code:
    """Return code that a run names; raise RunFolderError if this user has not permitted to run it."""
    config = folder.config()
    text, found = list_code(config)[part], _read_trust(folder.path, config).get(part)
    if found is None or found.text != text:
        raise RunFolderError(
            f"the {part} of {folder.path} comes from code, {text!r}, which is not run unless you permit it; if you trust it, name it "
            f"again: --{part}-from {_quote(text)} (in Python {part}_from=), or trust the run: feduhb trust {folder.path}"
        )
    try:
        locate(found)
    except ConfigError as error:
        raise RunFolderError(
            f"{error}, or go to the folder that holds it now: feduhb trust {folder.path}"
        ) from None
    return found


def _quote(text: str) -> str:
    """Return a text of a run folder, which may be anybody's, for a line that a person may copy into a terminal."""
    return shlex.quote(text if text.isprintable() else repr(text))


def trust_run(folder: Path) -> list[Trusted]:
    """Permit what a run names as its code, as found here: among the installed modules, or in the working directory."""
    files = RunFolder(folder)
    config = files.config()
    parse_config({key: value for key, value in config.items() if key != "flower"}, str(files.config_path))
    code: dict[Part, Code] = {part: _find(files, text) for part, text in list_code(config).items()}
    if not code:
        raise RunFolderError(
            f"{folder} names no code to trust; if its data or method came from Python, name it: --data-from, --method-from"
        )
    found = [(one.text, locate(one)) for one in code.values()]
    write_atomically(folder / TRUST, _format(config, code))
    return [Trusted(text, file, digest_file(file)) for text, file in found]


def _find(files: RunFolder, text: str) -> Code:
    try:
        found = find_code(text, Path.cwd())
    except ConfigError as error:
        raise RunFolderError(f"{error}, or go to the folder that holds it and trust the run there") from None
    if found.text != text:
        raise RunFolderError(
            f"{files.config_path} names {text!r} with a folder, which no run records; restore a backup"
        )
    return found


def _read_trust(folder: Path, config: Mapping[str, Any]) -> Mapping[Part, Code]:
    """Return the code that this user permitted to run for a run with this config."""
    try:
        found = read_json(folder / TRUST, Trust, "trust the run again")
    except (OSError, RunFolderError):
        return {}
    is_ours = hmac.compare_digest(found.signature.encode(), _sign(config, found.code).encode())
    return found.code if is_ours else {}


def _format(config: Mapping[str, Any], code: Mapping[Part, Code]) -> bytes:
    trust = Trust(dict(code), _sign(config, code))
    return (json.dumps(asdict(trust), indent=1) + "\n").encode()


def _sign(config: Mapping[str, Any], code: Mapping[Part, Code]) -> str:
    values = [identify_run(config), {part: asdict(one) for part, one in code.items()}]
    return hmac.new(read_key(), f"trust {digest_json(values)}".encode(), hashlib.sha256).hexdigest()

"""Make certificates, keys and the shared secret with the commands an operator would type."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

from loopback.programs import FederationError

DAYS = "30"


def make_certificates(folder: Path, host: str) -> None:
    """Make an authority and a server certificate that names ``host``, unless they exist."""
    if (folder / "server.crt").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    openssl = _find_program("openssl")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _run(
        openssl, "req", "-x509", *curve, "-days", DAYS, "-subj", "/CN=federation",
        "-keyout", "ca.key", "-out", "ca.crt", cwd=folder,
    )  # fmt: skip
    _run(
        openssl, "req", *curve, "-subj", "/CN=superlink", "-addext", f"subjectAltName=IP:{host}",
        "-keyout", "server.key", "-out", "server.csr", cwd=folder,
    )  # fmt: skip
    _run(
        openssl, "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-copy_extensions", "copy", "-days", DAYS, "-out", "server.crt", cwd=folder,
    )  # fmt: skip


def make_node_key(path: Path) -> None:
    """Make a SuperNode's key pair, PATH and PATH.pub, unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _run(
            _find_program("ssh-keygen", package="openssh-client"),
            "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", path.name, "-f", str(path), cwd=path.parent,
        )  # fmt: skip


def make_secret(file: Path) -> None:
    """Make the secret that the SuperLink and its SuperExec share, unless it exists."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(secrets.token_bytes(32))


def _find_program(program: str, package: str = "") -> str:
    found = shutil.which(program)
    if found is None:
        raise FederationError(f"{program} is not installed; on Debian: apt-get install {package or program}")
    return found


def _run(*command: str, cwd: Path) -> None:
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise FederationError(f"{' '.join(command)} failed: {ended.stderr.strip()}")

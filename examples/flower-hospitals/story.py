"""The whole story on this machine: three hospitals train, one leaves, the audit looks, and everything is stopped again.

python story.py [--out FOLDER] [--rounds 5] [--forget hospital-c] [--simulation]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import feduhb
from feduhb.flower import key_id
from feduhb.records import Round, RunFolder, why_ended
from hospitals import audit, data
from hospitals.server import TRAINED
from loopback import Deployment, FederationError, Simulation, scrub

HERE = Path(__file__).resolve().parent
APP = HERE / "app"
UNLEARNED = "unlearned"

Hospitals = Deployment | Simulation


def deployed(folder: Path, prefix: tuple[str, ...] = ()) -> Deployment:
    """Write every hospital's file, and give the federation that will run beside them."""
    data.write(folder / "data")
    members = {name: {"data": str(folder / "data" / f"{name}.npz")} for name in data.HOSPITALS}
    return Deployment(folder, members, environment=_environment(), prefix=prefix)


def simulated(folder: Path) -> Simulation:
    """Write every hospital's file, and give a simulation that reads them all."""
    data.write(folder / "data")
    return Simulation(folder, len(data.HOSPITALS), environment=_environment())


def _environment() -> dict[str, str]:
    """Let all programs find the hospitals' modules, installed or not, and wait without spinning."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def submit(hospitals: Hospitals, run: str, **settings: Any) -> int:
    """Hand in a training, or an erasure (forget="hospital-c"); its checkpoints and records go into runs/RUN."""
    shared = {"data": str(hospitals.folder / "data")} if isinstance(hospitals, Simulation) else {}
    return hospitals.submit(APP, {"folder": str(hospitals.folder / "runs"), "run": run, **shared, **settings})


def rounds_of(hospitals: Hospitals, run: str) -> list[Round]:
    """Give the finished rounds of a run."""
    folder = RunFolder(hospitals.folder / "runs" / run)
    return folder.rounds() if folder.rounds_path.exists() else []


def ids_of(hospitals: Hospitals) -> dict[str, str]:
    """Give every hospital's client id by name: a digest of its public key; in a simulation, the name."""
    if isinstance(hospitals, Simulation):
        return {name: name for name in data.HOSPITALS}
    return {name: key_id(hospitals.key(name).with_suffix(".pub")) for name in data.HOSPITALS}


def messages(hospitals: Deployment, name: str) -> list[tuple[str, str]]:
    """Read from a hospital's own log what it was sent: (run, kind of message)."""
    text = re.sub(r"\x1b\[\d+m", "", hospitals.programs[name].text())
    return re.findall(r"\[RUN (\d+)[^\]]*\]\n\S+\s*:\s+Receiving: (\S+) message", text)


@dataclass(frozen=True, slots=True)
class Story:
    """What happened: the numbers of the two runs at the SuperLink, and the audit."""

    training: int
    erasure: int
    audit: feduhb.Audit


def story(hospitals: Hospitals, forget: str, rounds: int) -> Story:
    """Train, forget, audit."""
    training = submit(hospitals, TRAINED, rounds=rounds)
    hospitals.wait(training)
    print(f"{len(rounds_of(hospitals, TRAINED))} rounds of training with {', '.join(data.HOSPITALS)}")
    erasure = submit(hospitals, UNLEARNED, rounds=rounds, forget=forget, replaces=TRAINED)
    hospitals.wait(erasure)
    unlearned = rounds_of(hospitals, UNLEARNED)
    print(f"{len(unlearned)} rounds of FedUHB without {forget}: {why_ended(unlearned)}")
    leaver = ids_of(hospitals)[forget]
    print(f"{forget} ({leaver}) was asked in {sum(leaver in record.asked for record in unlearned)} of them")
    if isinstance(hospitals, Deployment):
        sent = [kind for run, kind in messages(hospitals, forget) if run == str(erasure)]
        print(f"It was connected all the while. By its own log it was sent: {', '.join(sent) or 'nothing'}")
        scrub(hospitals.database)
        print("What hospitals had sent is out of the SuperLink's database files")
    found = _audited(hospitals, leaver, rounds)
    print(f"\n{found}\n")
    return Story(training, erasure, found)


def _audited(hospitals: Hospitals, leaver: str, rounds: int) -> feduhb.Audit:
    whole = audit.federation(hospitals.folder / "data", ids_of(hospitals))
    runs = hospitals.folder / "runs"
    before = audit.opened(runs / TRAINED, whole, rounds)
    after = audit.opened(runs / UNLEARNED, whole, rounds, leaver)
    found = feduhb.audit(after, before, show=None)
    (hospitals.folder / "audit.json").write_text(found.to_json())
    return found


def heed() -> None:
    """Let a request to end, or a terminal that closes, end this program as Ctrl-C does, unless it was started to ignore it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def opened(folder: Path, *, simulation: bool) -> Hospitals:
    """Give the hospitals of a folder, new or left by an earlier start of the same kind."""
    deployment = (folder / "keys").exists()
    if deployment == simulation and (deployment or (folder / "runs").exists()):
        kind = "deployment" if deployment else "simulation"
        raise FederationError(f"{folder} holds a {kind}; take another folder with --out")
    return simulated(folder) if simulation else deployed(folder)


def main() -> int:
    """Play the story; whatever happens, stop what was started. What is written is for this user's eyes."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument(
        "--out",
        type=Path,
        help="keep keys, logs, runs and the audit in this folder; a second start goes on there",
    )
    words.add_argument("--rounds", type=int, default=5, help="of training, and at most of unlearning")
    words.add_argument("--forget", choices=data.HOSPITALS, default=data.HOSPITALS[-1])
    words.add_argument("--simulation", action="store_true", help="let Flower simulate the hospitals")
    given = words.parse_args()
    heed()
    os.umask(0o077)
    with tempfile.TemporaryDirectory() as scratch:
        hospitals: Hospitals | None = None
        try:
            hospitals = opened((given.out or Path(scratch)).resolve(), simulation=given.simulation)
            with hospitals:
                print(f"up on {hospitals.address}: {', '.join(hospitals.programs)}", flush=True)
                story(hospitals, given.forget, given.rounds)
        except FederationError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            if hospitals is not None and hospitals.programs:
                print(f"stopped: {', '.join(hospitals.programs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Play the story on this machine: three hospitals train, one is forgotten, an audit looks, everything is stopped."""

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import feduhb
from hospitals import audit, data

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "tests"))  # for `loopback`, the harness that the tests share
from loopback import Deployment, FederationError, LocalFederation, Simulation, exit_on_signals  # noqa: E402

say = partial(print, flush=True)


def prepare(folder: Path, *, simulation: bool = False) -> LocalFederation:
    """Write every hospital's file, and return the federation that will read them."""
    data.write(folder / "data")
    members = {name: {"data": str(folder / "data" / f"{name}.npz")} for name in data.HOSPITALS}
    return (Simulation if simulation else Deployment)(folder, members, modules=HERE, show=say)


def submit(hospitals: LocalFederation, run: str, **settings: Any) -> int:
    """Submit a training, or an unlearning (forget="hospital-c"), whose results go to runs/RUN."""
    if isinstance(hospitals, Simulation):
        settings["data"] = str(hospitals.folder / "data")
    return hospitals.submit(HERE / "app", {"folder": str(hospitals.folder / "runs"), "run": run, **settings})


def play(hospitals: LocalFederation, leaver: str, rounds: int) -> tuple[int, int, feduhb.Audit]:
    """Train, forget and audit; return the numbers of the two runs at the SuperLink, and the audit."""
    training = submit(hospitals, "trained", rounds=rounds)
    hospitals.wait_for_run(training)
    say(f"trained with {', '.join(data.HOSPITALS)}")
    erasure = submit(hospitals, "unlearned", rounds=rounds, forget=leaver, replaces="trained")
    hospitals.wait_for_run(erasure)

    ids = {name: hospitals.client_id(name) for name in data.HOSPITALS}
    before, after = audit.open_runs(hospitals.folder, ids)
    asked = sum(ids[leaver] in record.asked for record in after.rounds)
    say(f"{len(after.rounds)} rounds of FedUHB without {leaver}: {after.stopped}")
    say(f"{leaver} ({ids[leaver]}) was asked in {asked} of them")
    if isinstance(hospitals, Deployment):
        received = ", ".join(hospitals.list_messages(leaver, erasure)) or "nothing"
        say(f"it stayed connected and received, by its own log: {received}")
        hospitals.scrub_database()
        say("the SuperLink's database files no longer hold what the hospitals sent")
    found = feduhb.audit(after, before, show=None)
    (hospitals.folder / "audit.json").write_text(found.to_json())
    say(f"\n{found}\n")
    return training, erasure, found


def main() -> None:
    """Play the story, and stop every program that was started, whatever happens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep all files here; a second start continues")
    parser.add_argument("--rounds", type=int, default=5, help="of training, and at most of unlearning")
    parser.add_argument("--forget", choices=data.HOSPITALS, default=data.HOSPITALS[-1])
    parser.add_argument("--simulation", action="store_true", help="let Flower simulate the hospitals")
    given = parser.parse_args()
    exit_on_signals()
    os.umask(0o077)  # only this user may read what is written
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with prepare((given.out or Path(scratch)).resolve(), simulation=given.simulation) as hospitals:
                play(hospitals, given.forget, given.rounds)
        except FederationError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()

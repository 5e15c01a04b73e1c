"""The instruments in full, for an hour on two cores: `make soak`, or `PYTHONPATH=tests python -m hardening.soak --minutes 10`.

The cases are shuffled by the seed, and those that the time does not suffice for are left out; the closing table says how
many. The exit status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hardening import current_folder, damage, fuzz, kills, links, modes, races, scenes
from hardening.running import Watch, start_watch
from hardening.tally import KINDS, Finding, Tally, format_table

Case = Callable[[], list[Finding]]
LIMIT = 60.0  # seconds after which a command counts as hung
RACES = 50
SHARES = {
    "damage": 0.45,
    "links": 0.15,
    "kills": 0.25,
    "configs": 0.05,
    "lines": 0.06,
    "races": 0.02,
}  # of the time


@dataclass(frozen=True)
class Soak:
    """What the instruments share: the server, the folders, the seed and the number of cases at once."""

    watch: Watch
    place: Path
    seed: int
    workers: int

    def run(self, name: str, cases: Sequence[Case], seconds: float) -> Tally:
        """Run cases in a random order until the time is over; print progress and findings as they come."""
        tally, started, said = Tally(name, len(cases)), time.monotonic(), time.monotonic()
        order = random.Random(f"{self.seed} {name}").sample(list(cases), len(cases))
        seen: set[tuple[str, str, str]] = set()

        def run_one(case: Case) -> None:
            nonlocal said
            if time.monotonic() - started > seconds:
                return
            found = case()
            tally.add(found)
            for one in found:
                if (key := (one.kind, one.command, one.detail)) not in seen:
                    seen.add(key)
                    say(f"  {one}")
            if time.monotonic() - said > 60:
                said = time.monotonic()
                say(f"{name}: {tally.cases} of {tally.planned}, {len(tally.findings)} findings")

        with ThreadPoolExecutor(self.workers) as threads:
            list(threads.map(run_one, order))
        say(
            f"{name}: {tally.cases} of {tally.planned} cases, {len(tally.findings)} findings, {time.monotonic() - started:.0f} s"
        )
        return tally

    def list_damages(self, references: damage.References, known: Sequence[scenes.Scene]) -> list[Case]:
        """Return the damaged-file matrix."""
        return [
            lambda scene=scene, one=one, command=command: damage.try_damage(
                references, scene, one, command, LIMIT
            )
            for scene in known
            for one, command in damage.list_cases(scene, self.seed, flips=2, keys=6)
        ]

    def list_links(self, references: damage.References, known: Sequence[scenes.Scene]) -> list[Case]:
        """Return what can lie where commands write."""
        return [
            lambda scene=scene, one=one, command=command: damage.try_damage(
                references, scene, one, command, LIMIT
            )
            for scene in known
            for command in scene.commands
            for one in links.list_plants(references, scene, command)
        ]


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_all(soak: Soak, minutes: float, chosen: set[str]) -> list[Tally]:
    """Run the chosen instruments; return what they found."""
    share = minutes * 60 / sum(SHARES[name] for name in chosen & {*SHARES}) if chosen & {*SHARES} else 0
    watch, tallies = soak.watch, list[Tally]()

    def run(name: str, make: Callable[[], Sequence[Case]]) -> None:
        if name in chosen:
            tallies.append(soak.run(name, make(), share * SHARES[name]))

    known = [*scenes.build(watch, soak.place / "scenes").values()]
    references = damage.References(watch)
    run("damage", lambda: soak.list_damages(references, known))
    run("links", lambda: soak.list_links(references, known))
    audited = soak.place / "scenes" / "audited"
    run(
        "configs",
        lambda: [
            lambda one=one: fuzz.try_fuzzed(watch, audited, one, LIMIT)
            for one in fuzz.list_configs(soak.seed, 1000)
        ],
    )
    run(
        "lines",
        lambda: [
            lambda one=one: fuzz.try_fuzzed(watch, audited, one, LIMIT)
            for one in fuzz.list_command_lines(soak.seed, 1000)
        ],
    )
    trained = soak.place / "scenes" / "trained"
    run(
        "races",
        lambda: [
            lambda name=name: races.try_pair(watch, trained, name, LIMIT)
            for name in races.PAIRS
            for _ in range(RACES)
        ],
    )
    if chosen & {"kills", "modes"}:
        scenarios = kills.set_up(watch, soak.place / "kills")
        run(
            "kills",
            lambda: [
                lambda one=one: kills.try_stop(watch, one, LIMIT) for one in kills.list_stops(scenarios)
            ],
        )
        if "modes" in chosen:
            tallies.append(modes.check_all(scenarios, soak.place / "kills"))
    if "cwd" in chosen:
        tallies.append(current_folder.check_all(soak.place / "scenes" / "unlearned"))
    return tallies


def main() -> None:
    """Run the instruments and print what they found."""
    names = (*SHARES, "modes", "cwd")
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=55.0, help="how long to run, about")
    parser.add_argument("--seed", type=int, default=0, help="chooses and orders the cases")
    parser.add_argument("--workers", type=int, default=2, help="cases at once")
    parser.add_argument("--only", default=",".join(names), help=f"of {', '.join(names)}")
    given = parser.parse_args()
    chosen = set(given.only.split(","))
    if odd := chosen - {*names}:
        parser.error(f"there is no instrument {', '.join(sorted(odd))}; there are {', '.join(names)}")
    with start_watch() as watch, tempfile.TemporaryDirectory(prefix="feduhb-soak-") as place:
        tallies = run_all(Soak(watch, Path(place), given.seed, given.workers), given.minutes, chosen)
    for tally in tallies:
        if tally.findings:
            say(f"\n{tally.name}:\n" + "\n".join(tally.list_distinct()))
    say(
        f"\nseed {given.seed}\n{format_table(tallies)}\n"
        + "\n".join(f"{kind}: {words}" for kind, words in KINDS.items())
    )
    sys.exit(1 if any(tally.findings for tally in tallies) else 0)


if __name__ == "__main__":
    main()

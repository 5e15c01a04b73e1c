"""The instruments in full, to their end, in about ten minutes on two cores: `make soak`, or

    PYTHONPATH=tests python -m hardening.soak --minutes 10 --only damage,kills

In full means: every file of every scene truncated, with a flipped bit, of another shape, not UTF-8, a folder and a link, each
with every command that reads it, and many other damages once; a link at every path that each command writes; every command
killed, torn and refused at every event that differs from the others in more than a number. `--more` tries every combination,
which takes hours; another `--seed` chooses other bits, values and events.

The cases are shuffled by the seed, and those that the time does not suffice for are left out; the closing table says how
many. The exit status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hardening import current_folder, damage, fuzz, kills, links, modes, races, scenes
from hardening.running import Watch, start_watch
from hardening.tally import KINDS, Finding, Tally, format_table

Case = Callable[[], list[Finding]]
LIMIT = 60.0  # seconds after which a command counts as hung
FUZZED, RACES = 100, 5  # configs, and as many command lines; races of each pair
MORE = 4  # times as many of these, for --more
NAMES = ("damage", "links", "kills", "configs", "lines", "races", "modes", "cwd")


@dataclass(frozen=True)
class Soak:
    """What the instruments share: the server, the folders, the seed, and whether to try every combination."""

    watch: Watch
    place: Path
    seed: int
    more: bool

    def list_cases(self, chosen: set[str]) -> dict[str, Sequence[Case]]:
        """Return the cases of the chosen instruments."""
        watch, count = self.watch, MORE if self.more else 1
        known = [*scenes.build(watch, self.place / "scenes").values()]
        references = damage.References(watch)
        found: dict[str, Sequence[Case]] = {}
        if "damage" in chosen:
            cases = damage.list_cases(references, known, self.seed, more=self.more)
            found["damage"] = [partial(damage.try_damage, references, *case, LIMIT) for case in cases]
        if "links" in chosen:
            cases = links.list_cases(references, known, more=self.more)
            found["links"] = [partial(damage.try_damage, references, *case, LIMIT) for case in cases]
        for name, draw in (("configs", fuzz.list_configs), ("lines", fuzz.list_command_lines)):
            if name in chosen:
                audited, odd = self.place / "scenes" / "audited", draw(self.seed, FUZZED * count)
                found[name] = [partial(fuzz.try_fuzzed, watch, audited, one, LIMIT) for one in odd]
        if "races" in chosen:
            trained, pairs = self.place / "scenes" / "trained", [*races.PAIRS] * RACES * count
            found["races"] = [partial(races.try_pair, watch, trained, pair, LIMIT) for pair in pairs]
        if chosen & {"kills", "modes"}:
            scenarios = kills.set_up(watch, self.place / "kills")
            stops = kills.list_stops(scenarios, self.seed, more=self.more)
            tried = {
                "kills": [partial(kills.try_stop, watch, one, LIMIT) for one in stops],
                "modes": [partial(modes.check, one, self.place / "kills") for one in scenarios],
            }
            found |= {name: cases for name, cases in tried.items() if name in chosen}
        if "cwd" in chosen:
            unlearned = self.place / "scenes" / "unlearned"
            commands = current_folder.COMMANDS
            found["cwd"] = [partial(current_folder.try_command, unlearned, one) for one in commands]
        return found


def run(cases: Mapping[str, Sequence[Case]], seed: int, workers: int, minutes: float) -> list[Tally]:
    """Run cases in a random order until the time is over; print progress and findings as they come."""
    tallies = {name: Tally(name, len(some)) for name, some in cases.items()}
    order = [(tallies[name], case) for name, some in cases.items() for case in some]
    random.Random(seed).shuffle(order)
    started = said = time.monotonic()
    seen: set[tuple[str, str, str]] = set()

    def run_one(tally: Tally, case: Case) -> None:
        nonlocal said
        if time.monotonic() - started > minutes * 60:
            return
        found = case()
        tally.add(found)
        for one in found:
            if (key := (one.kind, one.command, one.detail)) not in seen:
                seen.add(key)
                say(f"  {one}")
        if time.monotonic() - said > 60:
            said = time.monotonic()
            done, findings = (sum(map(count, tallies.values())) for count in (_count_cases, _count_findings))
            say(f"{(said - started) / 60:.0f} min: {done} of {len(order)} cases, {findings} findings")

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(run_one, *zip(*order, strict=True)))
    say(f"{(time.monotonic() - started) / 60:.1f} min")
    return [*tallies.values()]


def _count_cases(tally: Tally) -> int:
    return tally.cases


def _count_findings(tally: Tally) -> int:
    return len(tally.findings)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the instruments and print what they found."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after about this time")
    parser.add_argument("--seed", type=int, default=0, help="chooses and orders the cases")
    parser.add_argument("--more", action="store_true", help="try every combination, for hours")
    parser.add_argument("--workers", type=int, default=2, help="cases at once")
    parser.add_argument("--only", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    given = parser.parse_args()
    chosen = set(given.only.split(","))
    if odd := chosen - {*NAMES}:
        parser.error(f"there is no instrument {', '.join(sorted(odd))}; there are {', '.join(NAMES)}")
    with start_watch() as watch, tempfile.TemporaryDirectory(prefix="feduhb-soak-") as place:
        cases = Soak(watch, Path(place), given.seed, given.more).list_cases(chosen)
        say(", ".join(f"{name} {len(some)}" for name, some in cases.items()))
        tallies = run(cases, given.seed, given.workers, given.minutes)
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

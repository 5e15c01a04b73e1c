"""Two different requests to one run at the same moment: one is served, and the other is refused in words."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hardening.damage import check_end
from hardening.running import LIMIT, Watch, Watched, make_scratch
from hardening.scenes import SECOND, Stage, read_weights, unlearn
from hardening.tally import Finding

PAIRS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "two clients": (unlearn("feduhb"), unlearn("feduhb", "first-other", forget=SECOND)),
    "two clients, by replays": (unlearn("federaser"), unlearn("fedrecover", "first-other", forget=SECOND)),
    "a replay and an exact method": (unlearn("federaser"), unlearn("retrain", "first-other", forget=SECOND)),
    "one that reads much and an exact method": (
        unlearn("crab"),
        unlearn("retrain", "first-other", forget=SECOND),
    ),
}


def start_together(
    watch: Watch, place: Path, commands: Sequence[Sequence[str]], limit: float = LIMIT
) -> list[Watched]:
    """Start commands in processes that wait for each other at a gate; return how they ended."""
    gate = place.with_name(f"{place.name}-gate")
    gate.touch()
    with gate.open() as held, ThreadPoolExecutor(len(commands)) as threads:
        fcntl.flock(held, fcntl.LOCK_EX)
        running = [
            threads.submit(watch.feduhb, place, command, gate=str(gate), limit=limit) for command in commands
        ]
        while len(list(gate.parent.glob(f"{gate.name}.*"))) < len(commands) and not any(
            one.done() for one in running
        ):
            time.sleep(0.002)
        fcntl.flock(held, fcntl.LOCK_UN)
        return [one.result() for one in running]


def try_pair(watch: Watch, trained: Path, name: str, limit: float = LIMIT) -> list[Finding]:
    """Send two requests to a copy of a trained run at once, and return what should not have happened."""
    with make_scratch() as scratch:
        place = Stage.copy(trained, scratch / "runs")
        pair = PAIRS[name]
        ended = start_together(watch, place, pair, limit)
        both = " and ".join(" ".join(command) for command in pair)
        found = [one for end in ended for one in check_end(end, both, name)]
        served = [end.returncode == 0 for end in ended]
        if sum(served) != 1:
            words = " / ".join(end.last_line for end in ended if end.returncode)
            found.append(Finding("weights", both, name, f"{sum(served)} of 2 requests were served {words}"))
        for command, was_served in zip(pair, served, strict=True):
            if not was_served and read_weights(place / command[-1]) is not None:
                found.append(Finding("weights", both, name, "the refused request has a finished run"))
    return found

"""Tables of what was run, how long it took, what came out, and how soon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from feduhb.report.grids import NOTHING, Grid
from feduhb.report.words import listed, number, percent
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Cell
from feduhb_reproduction.report import printed
from feduhb_reproduction.report.federations import Federation, federations
from feduhb_reproduction.report.measures import (
    COMPILED,
    UHB_ON,
    Spread,
    Times,
    final,
    reached,
    score,
    stays,
    times,
    total,
    work,
)
from feduhb_reproduction.report.spelling import PLUS, RULED, arrived, counts, numbers, ratio, seeded, shares

Row = list[str]


def every(cells: Sequence[Cell]) -> list[Federation]:
    """Give all federations, those with a backdoor last."""
    return [*federations(cells), *federations(cells, backdoor=True)]


def runs(cells: Sequence[Cell]) -> Grid:
    """What was run, and on what."""
    rows = [
        [each.label, listed([str(seed) for seed in each.seeds]), str(each.rounds), *_made(each)]
        for each in every(cells)
    ]
    headers = ["federation", "seeds", "rounds", "timed seeds", "device", "engine", "commit", "finished"]
    return Grid("What was run", headers, rows, frozenset({0, 1, 3, 4, 5, 6, 7}))


def _made(federation: Federation) -> Row:
    made, timed = [made for cell in federation.cells for made in cell.origins], federation.timed
    engines = [f"{each['engine']['name']} {each['engine']['precision']}" for each in made]
    devices = [str(each["device"]) for each in made]
    commits = [str(each["commit"])[:10] for each in made]
    days = sorted(str(each["finished"])[:10] for each in made)
    alone = NOTHING if timed is None else listed([str(seed) for seed in timed.seeds])
    unique = (", ".join(dict.fromkeys(values)) for values in (devices, engines, commits))
    return [alone, *unique, " to ".join(dict.fromkeys([days[0], days[-1]]))]


def table_1(cells: Sequence[Cell]) -> Grid:
    """The paper's Table I: seconds per executed round, in total, and per scheduled round."""
    rows = [
        [each.label, printed.ROWS[run], *_took(found, times(each, RETRAIN)), *_claimed(each, run), f"{found.total.n}"]
        for each in every(cells)
        for run in printed.METHODS
        if (found := times(each, run))
    ]  # fmt: skip
    headers = [
        "federation", "method", "s per executed round", "quartiles over rounds", "of Retrain's", "rounds executed", "s in total", "of Retrain's",
        "s in total / rounds scheduled", "paper: s per round", "paper: of Retrain's", "seeds",
    ]  # fmt: skip
    note = (
        "Seconds of clients and server, evaluation apart, of cells that had their machine to themselves. A round's seconds are the "
        "plain median over a run's executed rounds; FedRecover's rounds are of two kinds, asked and estimated, and a median is of the commoner. "
        f"{COMPILED} "
        "FedEraser runs one round for each that was kept. The paper says “each unlearning round” and not how that was taken: "
        f"total over scheduled rounds is what its numbers may be. {_machines(cells)} {_timings(cells)} {PLUS}"
    )
    return Grid("Table I: running time", headers, rows, frozenset({0, 1}), note)


def _took(found: Times, retrain: Times | None) -> Row:
    each, whole = (
        (NOTHING, NOTHING)
        if retrain is None
        else (ratio(found.per_round, retrain.per_round), ratio(found.total, retrain.total))
    )
    return [
        numbers(found.per_round), " to ".join(number(each.mean or 0.0) for each in found.quartiles), each, counts(found.rounds), numbers(found.total), whole, numbers(found.per_scheduled),
    ]  # fmt: skip


def _claimed(federation: Federation, run: str) -> Row:
    told = printed.SECONDS.get(federation.cells[0].place.data, {})
    return [f"{told[run]:.2f}", f"{told[run] / told[RETRAIN]:.2f}"] if run in told else [NOTHING, NOTHING]


def _timings(cells: Sequence[Cell]) -> str:
    seeds = {len(timed.seeds) for each in every(cells) if (timed := each.timed) is not None}
    if seeds == {1}:
        return "One seed of each federation was timed: the spread is over rounds alone, and nothing is known of that over runs."
    return "The quartiles are means over the timed seeds."


def _machines(cells: Sequence[Cell]) -> str:
    timed = [cell.made for cell in cells if cell.made["alone"]]
    named = dict.fromkeys(
        f"{made['device']} (engine {made['engine']['name']}, {made['engine']['precision']})" for made in timed
    )
    return f"Timed on {listed(list(named))}." if named else ""


def accuracy(cells: Sequence[Cell]) -> Grid:
    """What each method's final model knows, and what it cost."""
    rows = [
        [each.label, printed.ROWS[run], *_outcome(each, run), seeded(each, run)]
        for each in every(cells)
        for run in (ORIGINAL, *printed.METHODS, UHB_ON)
        if each.has(run)
    ]
    headers = [
        "federation", "method", "test accuracy", "paper", "test loss", "rounds executed", "client epochs",
        "client rounds saved against Retrain", "on forgotten data", "on retained data", "seeds",
    ]  # fmt: skip
    note = (
        "Retrain and FedUHB are exact and need only the sum of the clients' answers, so they work under secure aggregation; FedEraser and "
        f"FedRecover are approximate and need every client's own. {RULED} Client rounds saved "
        "against Retrain: the share of the client rounds of the same seed's Retrain that a run does without, by ending early, by replaying fewer rounds, or "
        f"by estimates. A client round is one client in one round, however many epochs it trains: client epochs count those. {PLUS}"
    )
    return Grid("Accuracy after unlearning", headers, rows, frozenset({0, 1, 3}), note)


def _outcome(federation: Federation, run: str) -> Row:
    return [
        shares(final(federation, run)),
        said(printed.ACCURACY, federation, run),
        numbers(final(federation, run, "test_loss")),
        counts(total(federation, run, "rounds")),
        counts(total(federation, run, "client_epochs")),
        NOTHING if run in {ORIGINAL, RETRAIN} else shares(saved(federation, run)),
        *(shares(score(federation, run, name)) for name in ("forgotten", "retained")),
    ]


def saved(federation: Federation, run: str) -> Spread:
    """Give the share of the client rounds of the same seed's Retrain that a run does without."""
    asked = {
        name: {seed: track.sums.get("client_rounds") for seed, track in federation.tracks(name).items()}
        for name in (run, RETRAIN)
    }
    pairs = [(n, asked[RETRAIN].get(seed)) for seed, n in asked[run].items()]
    return Spread(tuple(1 - n / whole for n, whole in pairs if n is not None and whole))


def rounds(cells: Sequence[Cell]) -> Grid:
    """The first round with Retrain's final accuracy, and with the paper's."""
    goal = printed.GOAL.get(cells[0].place.data) if cells else None
    rows = [row for each in federations(cells) for row in _arrivals(each, goal)]
    fixed = [] if goal is None else [f"first round with {percent(goal)}"]
    headers = [
        "federation", "Retrain's final accuracy", "method", "first round with it", "of the scheduled rounds",
        "for good from", "client epochs up to it", *fixed, "paper: rounds", "seeds",
    ]  # fmt: skip
    note = (
        "Each seed is held against its own Retrain's final test accuracy; Retrain's row is when it first had its own. “For good from” is the round from which on a run is "
        "never below it again. Where some "
        "seeds get there and others do not, the mean is over those that do, and how many is beside it. Client epochs are those of all clients up to "
        f"the first such round; of FedRecover, whose rounds differ in what they ask, those of the whole run. {RULED} What comes after the rule has ended a run "
        f"is never reached by it. {PLUS}"
    )
    return Grid("Rounds to Retrain's accuracy", headers, rows, frozenset({0, 2}), note)


def _arrivals(federation: Federation, goal: float | None) -> Iterator[Row]:
    last = shares(final(federation, RETRAIN))
    for run in (*printed.METHODS, UHB_ON):
        found = reached(federation, run)
        if not found.n:
            continue
        share = NOTHING if found.mean is None else percent(found.mean / federation.rounds)
        yield [
            federation.label,
            last,
            printed.ROWS[run],
            arrived(found),
            share,
            arrived(stays(federation, run)),
            counts(work(federation, run, found)),
            *([] if goal is None else [arrived(reached(federation, run, goal))]),
            said(printed.REACHED, federation, run),
            f"{found.n}",
        ]


def said(table: Mapping[str, Mapping[str, str]], federation: Federation, run: str) -> str:
    """Give the paper's word on a method, if it has one."""
    return table.get(federation.cells[0].place.data, {}).get(run, NOTHING)

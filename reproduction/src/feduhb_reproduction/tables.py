"""The tables of a grid, each with the paper's number beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from feduhb.report.grids import Grid, escape_tex
from feduhb.report.words import NOTHING, format_number, format_percent, join_names
from feduhb_reproduction import tuning, words
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Cell
from feduhb_reproduction.federations import Federation, group_cells
from feduhb_reproduction.measures import (
    COMPILED,
    UHB_ON,
    Spread,
    Times,
    count_epochs,
    final_score,
    final_value,
    find_kept,
    find_reached,
    list_attackers,
    measure_asr,
    measure_misr,
    measure_times,
    subtract_final,
    sum_of,
)
from feduhb_reproduction.words import (
    PLUS,
    RULED,
    format_counts,
    format_numbers,
    format_points,
    format_ratio,
    format_reached,
    format_seeds,
    format_shares,
)


def make_tables(cells: Sequence[Cell]) -> dict[str, Grid]:
    """Return every table that has rows, by name."""
    kinds: dict[str, Callable[[Sequence[Cell]], Grid]] = {
        "runs": tabulate_runs, "table-1": tabulate_times, "accuracy": tabulate_accuracy, "reached": tabulate_rounds,
        "misr": tabulate_misr, "asr": tabulate_asr, "beta": tuning.tabulate_betas, "lambda": tuning.tabulate_lambdas, "ablation": tuning.tabulate_ablation,
    }  # fmt: skip
    made = {name: kind(cells) for name, kind in kinds.items()}
    return {name: grid for name, grid in made.items() if grid.rows}


def format_markdown(cells: Sequence[Cell]) -> str:
    """Return every table as Markdown, with its note."""
    found = make_tables(cells)
    notes = {name: grid.note for name, grid in found.items()} | {"runs": list_commands(cells)}
    return "\n".join(
        "\n\n".join(part for part in (f"## {grid.title}", notes[name], grid.to_markdown()) if part)
        for name, grid in found.items()
    )


def list_commands(cells: Sequence[Cell]) -> str:
    """Return the commands that made the cells."""
    made = dict.fromkeys(str(made["command"]) for cell in cells for made in cell.origins)
    return f"The cells were made by {join_names([f'`{command}`' for command in made])}."


def format_latex(grid: Grid) -> str:
    """Return one table as a LaTeX tabular, under comments."""
    return f"% {escape_tex(grid.title)}\n% {escape_tex(grid.note)}\n{grid.to_latex()}"


def tabulate_misr(cells: Sequence[Cell]) -> Grid:
    """Return MISR as in the paper, with the attacker's rate on test data beside every number."""
    found = [each for each in list_federations(cells) if list_attackers(each)]
    names = list(dict.fromkeys(name for each in found for name in list_attackers(each)))
    rows = [
        [
            each.label,
            words.ROWS[run],
            *(format_shares(side) for name in names for side in measure_misr(each, run, name)),
            find_printed(words.MISR, each, run),
            format_seeds(each, run),
        ]
        for each in found
        for run in (ORIGINAL, *words.METHODS)
        if each.has(run)
    ]
    columns = [head for name in names for head in (name, "on test data")]
    headers = ["federation", "model", *columns, "paper", "seeds"]
    note = (
        "MISR: the share of the forgotten data that an attacker, fitted on the original model, calls member. It is a recall, and 50% "
        "has no meaning of its own: compare with Retrain, which never saw the data, and with the attacker's rate on test data. These two differ if the leavers' "
        f"labels are not distributed as in the test data. {PLUS}"
    )
    return Grid("MISR, as in the paper", headers, rows, frozenset({0, 1, len(headers) - 2}), note)


def tabulate_asr(cells: Sequence[Cell]) -> Grid:
    """Return how often the trigger works, against the floor."""
    rows = [
        [
            each.label,
            words.ROWS[run],
            format_shares(measure_asr(each, run)),
            format_points(subtract_final(each, run, RETRAIN, "backdoor")),
            find_printed(words.ASR, each, run),
            format_shares(final_value(each, run)),
            format_seeds(each, run),
        ]
        for each in group_cells(cells, backdoor=True)
        for run in (ORIGINAL, *words.METHODS)
        if measure_asr(each, run).n
    ]
    headers = ["federation", "model", "ASR", "over Retrain's (points)", "paper", "test accuracy", "seeds"]
    note = (
        "ASR: the share of stamped test images of other classes that the model takes for the target. Retrain never saw the trigger: its row "
        f"is the floor. If the original is not above it, nothing was implanted that could be forgotten. {PLUS}"
    )
    return Grid("ASR: does the backdoor still work?", headers, rows, frozenset({0, 1, 4}), note)


Row = list[str]


def list_federations(cells: Sequence[Cell]) -> list[Federation]:
    """Return all federations, those with a backdoor last."""
    return [*group_cells(cells), *group_cells(cells, backdoor=True)]


def tabulate_runs(cells: Sequence[Cell]) -> Grid:
    """Return what was run, and on which machine."""
    rows = [
        [each.label, join_names([str(seed) for seed in each.seeds]), str(each.rounds), *_list_origins(each)]
        for each in list_federations(cells)
    ]
    headers = ["federation", "seeds", "rounds", "timed seeds", "device", "engine", "commit", "finished"]
    return Grid("What was run", headers, rows, frozenset({0, 1, 3, 4, 5, 6, 7}))


def _list_origins(federation: Federation) -> Row:
    made, timed = [made for cell in federation.cells for made in cell.origins], federation.timed
    engines = [f"{each['engine']['name']} {each['engine']['precision']}" for each in made]
    devices = [str(each["device"]) for each in made]
    commits = [str(each["commit"])[:10] for each in made]
    days = sorted(str(each["finished"])[:10] for each in made)
    alone = NOTHING if timed is None else join_names([str(seed) for seed in timed.seeds])
    unique = (", ".join(dict.fromkeys(values)) for values in (devices, engines, commits))
    return [alone, *unique, " to ".join(dict.fromkeys([days[0], days[-1]]))]


def tabulate_times(cells: Sequence[Cell]) -> Grid:
    """Return the paper's Table I: seconds per executed round, in total, and per scheduled round."""
    rows = [
        [each.label, words.ROWS[run], *_list_times(found, measure_times(each, RETRAIN)), *_list_printed(each, run), f"{found.total.n}"]
        for each in list_federations(cells)
        for run in words.METHODS
        if (found := measure_times(each, run))
    ]  # fmt: skip
    headers = [
        "federation", "method", "s per executed round", "quartiles over rounds", "of Retrain's", "rounds executed", "s in total", "of Retrain's",
        "s in total / rounds scheduled", "paper: s per round", "paper: of Retrain's", "seeds",
    ]  # fmt: skip
    note = (
        "Seconds of clients and server, without evaluation, of cells that ran alone on their machine. A round's seconds are the median "
        "over a run's executed rounds. FedRecover has two kinds of rounds, asked and estimated, and the median is of the commoner. "
        f"{COMPILED} "
        "FedEraser runs one round for each that its history keeps. The paper says “each unlearning round” and not how it was measured: "
        f"its numbers may be totals over scheduled rounds. {_describe_machines(cells)} {_describe_timings(cells)} {PLUS}"
    )
    return Grid("Table I: running time", headers, rows, frozenset({0, 1}), note)


def _list_times(found: Times, retrain: Times | None) -> Row:
    each = whole = NOTHING
    if retrain is not None:
        each = format_ratio(found.per_round, retrain.per_round)
        whole = format_ratio(found.total, retrain.total)
    return [
        format_numbers(found.per_round), " to ".join(format_number(each.mean or 0.0) for each in found.quartiles), each, format_counts(found.rounds), format_numbers(found.total), whole, format_numbers(found.per_scheduled),
    ]  # fmt: skip


def _list_printed(federation: Federation, run: str) -> Row:
    printed = words.SECONDS.get(federation.cells[0].place.data, {})
    return (
        [f"{printed[run]:.2f}", f"{printed[run] / printed[RETRAIN]:.2f}"]
        if run in printed
        else [NOTHING, NOTHING]
    )


def _describe_timings(cells: Sequence[Cell]) -> str:
    seeds = {len(timed.seeds) for each in list_federations(cells) if (timed := each.timed) is not None}
    if seeds == {1}:
        return "One seed of each federation was timed: the spread is over rounds, and the spread over runs is unknown."
    return "The quartiles are means over the timed seeds."


def _describe_machines(cells: Sequence[Cell]) -> str:
    timed = [cell.made for cell in cells if cell.made["alone"]]
    named = dict.fromkeys(
        f"{made['device']} (engine {made['engine']['name']}, {made['engine']['precision']})" for made in timed
    )
    return f"Timed on {join_names(list(named))}." if named else ""


def tabulate_accuracy(cells: Sequence[Cell]) -> Grid:
    """Return the accuracy of each method's final model, and its cost."""
    rows = [
        [each.label, words.ROWS[run], *_list_outcomes(each, run), format_seeds(each, run)]
        for each in list_federations(cells)
        for run in (ORIGINAL, *words.METHODS, UHB_ON)
        if each.has(run)
    ]
    headers = [
        "federation", "method", "test accuracy", "paper", "test loss", "rounds executed", "client epochs",
        "client rounds saved against Retrain", "on forgotten data", "on retained data", "seeds",
    ]  # fmt: skip
    note = (
        "Retrain and FedUHB are exact and need only the sum of the clients' answers, so they work under secure aggregation. FedEraser and "
        f"FedRecover are approximate and need each client's answer. {RULED} Client rounds saved: the share of the client rounds of the same seed's "
        "Retrain that a run saves by ending early, by replaying fewer rounds, or by estimates. A client round is one client in one round, whatever "
        f"the number of epochs; client epochs count the epochs. {PLUS}"
    )
    return Grid("Accuracy after unlearning", headers, rows, frozenset({0, 1, 3}), note)


def _list_outcomes(federation: Federation, run: str) -> Row:
    return [
        format_shares(final_value(federation, run)),
        find_printed(words.ACCURACY, federation, run),
        format_numbers(final_value(federation, run, "test_loss")),
        format_counts(sum_of(federation, run, "rounds")),
        format_counts(sum_of(federation, run, "client_epochs")),
        NOTHING if run in {ORIGINAL, RETRAIN} else format_shares(share_saved(federation, run)),
        *(format_shares(final_score(federation, run, name)) for name in ("forgotten", "retained")),
    ]


def share_saved(federation: Federation, run: str) -> Spread:
    """Return the share of the client rounds of the same seed's Retrain that a run saves."""
    asked = {
        name: {seed: track.sums.get("client_rounds") for seed, track in federation.tracks(name).items()}
        for name in (run, RETRAIN)
    }
    pairs = [(n, asked[RETRAIN].get(seed)) for seed, n in asked[run].items()]
    return Spread(tuple(1 - n / whole for n, whole in pairs if n is not None and whole))


def tabulate_rounds(cells: Sequence[Cell]) -> Grid:
    """Return the first round with Retrain's final accuracy, and with the paper's."""
    goal = words.GOAL.get(cells[0].place.data) if cells else None
    rows = [row for each in group_cells(cells) for row in _list_arrivals(each, goal)]
    fixed = [] if goal is None else [f"first round with {format_percent(goal)}"]
    headers = [
        "federation", "Retrain's final accuracy", "method", "first round with it", "of the scheduled rounds",
        "kept from", "client epochs up to it", *fixed, "paper: rounds", "seeds",
    ]  # fmt: skip
    note = (
        "Each seed is compared with the final test accuracy of its own Retrain. “Kept from” is the round from which a run is never below it again. "
        "If only some seeds reach it, the mean is over those, and their number is beside it. Client epochs are those of all clients up to "
        f"the first such round; those of the whole run for FedRecover, whose rounds differ in work. {RULED} Rounds after the rule's end do not count. {PLUS}"
    )
    return Grid("Rounds to Retrain's accuracy", headers, rows, frozenset({0, 2}), note)


def _list_arrivals(federation: Federation, goal: float | None) -> Iterator[Row]:
    last = format_shares(final_value(federation, RETRAIN))
    for run in (*words.METHODS, UHB_ON):
        found = find_reached(federation, run)
        if not found.n:
            continue
        share = NOTHING if found.mean is None else format_percent(found.mean / federation.rounds)
        yield [
            federation.label,
            last,
            words.ROWS[run],
            format_reached(found),
            share,
            format_reached(find_kept(federation, run)),
            format_counts(count_epochs(federation, run, found)),
            *([] if goal is None else [format_reached(find_reached(federation, run, goal))]),
            find_printed(words.REACHED, federation, run),
            f"{found.n}",
        ]


def find_printed(table: Mapping[str, Mapping[str, str]], federation: Federation, run: str) -> str:
    """Return what the paper prints on a method, if anything."""
    return table.get(federation.cells[0].place.data, {}).get(run, NOTHING)

"""Observations besides the paper's claims: a row for each federation, and phrases with numbers for each data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from feduhb.report.grids import Grid
from feduhb.report.words import NOTHING, format_number, join_names
from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.claims.parts import (
    DATA,
    Evidence,
    group_names,
    is_clear,
    name_federations,
    subtract,
    values_at,
)
from feduhb_reproduction.claims.recover import EARLY, LATE, find_ends
from feduhb_reproduction.federations import Federation, format_size
from feduhb_reproduction.measures import (
    UHB,
    UHB_ON,
    WARM,
    Spread,
    final_value,
    find_reached,
    list_seconds,
    measure_times,
    replace_slow,
    replay_rule,
    sum_of,
)
from feduhb_reproduction.tables import share_saved
from feduhb_reproduction.words import CORRECTED, LABELS, LAMBDA, METHODS, SECONDS, format_fired

FEW = 0.1  # of the client rounds: a run that saves less has nearly every client train in nearly every round
UP = 1.05  # times its lowest, from which on a test loss has turned up
WINDOWS = (None, 5, 10, 20)
SIDES = ("clearly ahead", "neither ahead nor behind", "clearly behind")
Note = Callable[[Sequence[Federation]], str]  # of a data set's federations; "" if there is nothing to say


def tabulate_methods(evidence: Evidence) -> Grid:
    """Return the accuracy of every method and the rounds of FedUHB, a row for each federation."""
    rounds = " or ".join(
        f"{n}" for n in sorted({one.rounds for data in DATA for one in evidence.clean(data)})
    )
    headers = [
        "federation", "original", f"Retrain, {rounds} rounds", "FedUHB reaches that at round",
        "stop rule ends FedUHB at round", "FedUHB at its end", "FedEraser", "FedRecover",
    ]  # fmt: skip
    rows = [
        [name, *_list_outcomes(one)]
        for data in DATA
        for name, one in name_federations(evidence.clean(data), data).items()
    ]
    return Grid("Method by method", headers, rows)


def _list_outcomes(one: Federation) -> list[str]:
    reach, ended = find_reached(one, UHB), replay_rule(one, UHB_ON)
    few = "" if ended.fires == ended.n else f" ({format_fired(ended)} seeds)"
    return [
        *(_format_share(final_value(one, run)) for run in (ORIGINAL, RETRAIN)),
        f"{reach.mean:.0f}" if reach.all and reach.mean is not None else "not always",
        f"{ended.executed.mean:.0f}{few}" if ended.fires else "never" if ended.n else NOTHING,
        *(_format_share(final_value(one, run)) for run in (UHB, "federaser", "fedrecover")),
    ]


def _format_share(found: Spread) -> str:
    if found.mean is None:
        return NOTHING
    return f"{found.mean:.1%}" if found.sd is None else f"{found.mean:.1%} ± {100 * found.sd:.1f}"


def tabulate_notes(evidence: Evidence) -> Grid:
    """Return a row for each thing noticed and a column for each data set; leave out rows without numbers."""
    found = [evidence.clean(data) for data in DATA]
    rows = [[phrase, *(note(there) or NOTHING for there in found)] for phrase, note in NOTES.items()]
    said = [row for row in rows if set(row[1:]) != {NOTHING}]
    return Grid("What we noticed", ["", *DATA.values()], said, frozenset(range(1 + len(DATA))))


def compare_pace(found: Sequence[Federation]) -> str:
    """Return the time of a round of FedUHB divided by that of Retrain, and the federations that were timed."""
    took = [(one, measure_times(one, UHB), measure_times(one, RETRAIN)) for one in found]
    ratios = [
        (one.short, our / their)
        for one, ours, theirs in took
        if ours and theirs and (our := ours.per_round.mean) and (their := theirs.per_round.mean)
    ]
    if not ratios:
        return ""
    names = dict.fromkeys(name for name, _ in ratios)
    return f"{_range((each for _, each in ratios), '.2f')} (timed: {join_names(list(names))})"


def count_ended(found: Sequence[Federation]) -> str:
    """Return in how many runs the rule fires, with each window."""
    there = [one for one in found if one.tracks(UHB_ON)]
    if not there:
        return ""
    every = [
        [replay_rule(one, scale=one.cells[0].place.scale, window=window) for one in there]
        for window in WINDOWS
    ]
    fires = " / ".join(str(sum(each.fires for each in ended)) for ended in every)
    return f"{fires} of {sum(each.n for each in every[0])} runs, λ {there[0].cells[0].place.scale:g}"


def describe_eraser(found: Sequence[Federation]) -> str:
    """Return the rounds and epochs of FedEraser, and its share of Retrain's client rounds."""
    asked = _format_asked(found, "federaser")
    tracks = [track for one in found for track in one.tracks("federaser").values()]
    sums = [track.sums for track in tracks if track.sums.get("client_rounds")]
    if not asked or not sums:
        return ""
    epochs = _range((each["client_epochs"] / each["client_rounds"] for each in sums), ".3g")
    rounds, place = _range((track.rounds for track in tracks), ".0f"), found[0].cells[0].place
    return (
        f"{rounds} rounds of {epochs} local epochs, no client trains in the first; Retrain runs {place.rounds} rounds of {place.epochs}; "
        f"FedEraser needs {asked} of Retrain's client rounds"
    )


def _format_asked(found: Iterable[Federation], run: str) -> str:
    """Return the share of Retrain's client rounds that a run needs, as the range of the federations' means."""
    means = [mean for one in found if (mean := share_saved(one, run).mean) is not None]
    return f"{_range((100 * (1 - mean) for mean in means), '.0f')} %" if means else ""


def compare_at_equal_work(found: Sequence[Federation], *, other: str) -> str:
    """Compare another method with FedUHB at the round by which both have used the same client epochs."""
    seen = {name: side for name, one in name_federations(found).items() if (side := _find_leader(one, other))}
    if not seen:
        return ""
    sides = {side: [name for name, (_, _, each) in seen.items() if each == side] for side in SIDES}
    phrases = "; ".join(f"{side} for {group_names(names)}" for side, names in sides.items() if names)
    epochs = _range((each for each, _, _ in seen.values()), ",.0f")
    rounds = _range((each for _, each, _ in seen.values()), ",.0f")
    return f"{phrases} ({epochs} client epochs: {rounds} rounds of FedUHB)"


def _find_leader(federation: Federation, other: str) -> tuple[float, float, str] | None:
    """Return the other method's client epochs, the rounds that FedUHB runs with them, and one of `SIDES`."""
    epochs, ours = (sum_of(federation, run, "client_epochs").mean for run in (other, UHB_ON))
    rounds = sum_of(federation, UHB_ON, "rounds").mean
    if not epochs or not ours or not rounds:
        return None
    end = min(int(epochs * rounds / ours), federation.rounds)
    if not end:
        return None
    one, two = values_at(federation, UHB_ON, end), values_at(federation, other, federation.rounds)
    ahead, level, behind = SIDES
    side = ahead if is_clear(subtract(one, two)) else behind if is_clear(subtract(two, one)) else level
    return epochs, float(end), side


def compare_printed_seconds(found: Sequence[Federation]) -> str:
    """Return how many rounds FedUHB ran in the paper if its seconds per round are totals over the scheduled rounds."""
    if not found:
        return ""
    place = found[0].cells[0].place
    ratio = SECONDS[place.data][UHB] / SECONDS[place.data][RETRAIN]
    ended = [replay_rule(one) for one in found]
    ran = f"{_range((each.executed.mean for each in ended), '.1f')} rounds"
    here = (
        f"here it ran {ran} with λ {place.scale:g}"
        if any(each.fires for each in ended)
        else "here the rule never fired"
    )
    return f"{ratio:.3f}; if these are totals divided by {place.rounds} scheduled rounds, FedUHB ran {ratio * place.rounds:.1f} rounds; {here}"


def sum_slow_rounds(found: Sequence[Federation]) -> str:
    """Return by how many seconds unusually slow rounds exceeded the median; totals do not count these seconds."""
    timed = [one.timed for one in found if one.timed is not None]
    lost = {run: _sum_lost([one for one in timed if one is not None], run) for run in METHODS}
    phrases = [f"{LABELS[run]} {format_number(each)}" for run, each in lost.items() if each > 0]
    return f"{'; '.join(phrases)} s" if phrases else ""


def _sum_lost(timed: Sequence[Federation], run: str) -> float:
    took = [list_seconds(track) for one in timed for track in one.tracks(run).values()]
    return sum(sum(each) - sum(replace_slow(each)) for each in took if each)


def find_rising_loss(found: Sequence[Federation]) -> str:
    """Return where the test loss of FedUHB turns up before the last round."""
    there = name_federations([one for one in found if final_value(one, UHB_ON, "test_loss").n])
    lows = {name: low for name, one in there.items() if (low := _find_lowest_loss(one)) is not None}
    if not lows:
        return ""
    rising = sum(_still_rises(there[name]) for name in lows)
    more = f"; accuracy still rises in {rising}" if rising else ""
    phrases = join_names([f"round {low:.1f} for {name}" for name, low in lows.items()])
    return f"in {len(lows)} of {len(there)} federations, lowest at {phrases}; ends over {UP - 1:.0%} higher{more}"


def _find_lowest_loss(federation: Federation) -> float | None:
    """Return the mean round of the lowest test loss; None if the last loss is not clearly higher."""
    tracks = [values for track in federation.tracks(UHB_ON).values() if (values := track.of("test_loss"))]
    if fmean(values[-1] for values in tracks) <= UP * fmean(min(values) for values in tracks):
        return None
    return fmean(1 + values.index(min(values)) for values in tracks)


def _still_rises(federation: Federation) -> bool:
    """Whether the accuracy is clearly higher at the end than where the loss is lowest."""
    low = round(_find_lowest_loss(federation) or federation.rounds)
    return is_clear(
        subtract(values_at(federation, UHB_ON, federation.rounds), values_at(federation, UHB_ON, low))
    )


def compare_images(found: Sequence[Federation]) -> str:
    """Return the accuracy of FedUHB by the images of a client, beside the paper's."""
    there = [one for one in found if final_value(one, RETRAIN).n]
    sizes = dict.fromkeys(one.per_client for one in there)
    printed = LAMBDA.get(there[0].cells[0].place.data) if there else None
    if len(sizes) < 2 or printed is None:
        return ""
    phrases = [
        f"{_range((final_value(one, UHB).mean for one in there if one.per_client == size), '.1%')} with {format_size(size)}"
        for size in sizes
    ]
    return f"{join_names(phrases)}; paper {printed[0.6][1]:.2%}"


def describe_recover(found: Sequence[Federation]) -> str:
    """Return the client rounds that FedRecover asks for and saves, without and with periodic correction."""
    there = [one for one in found if one.tracks("fedrecover") and one.tracks(CORRECTED)]
    if not there:
        return ""
    plain, corrected = (
        _range((sum_of(one, run, "client_rounds_saved").mean for one in there), ".0%")
        for run in ("fedrecover", CORRECTED)
    )
    asked = _format_asked(there, "fedrecover")
    return f"saves {plain} of them, with correction {corrected}; needs {asked} of Retrain's"


def describe_correction(found: Sequence[Federation]) -> str:
    """Return the accuracy that periodic correction brings."""
    there = [one for one in found if one.tracks("fedrecover") and one.tracks(CORRECTED)]
    if not there:
        return ""
    early, late = (
        _range((_measure_gain(one, find_ends(one)[reading]) for one in there), "+.1f")
        for reading in (EARLY, LATE)
    )
    return f"{early} points {EARLY}, {late} {LATE}"


def _measure_gain(federation: Federation, end: int) -> float:
    return 100 * (
        subtract(values_at(federation, CORRECTED, end), values_at(federation, "fedrecover", end)).mean or 0.0
    )


def find_spendthrifts(found: Sequence[Federation]) -> str:
    """Return the runs in which FedRecover saves next to nothing, which a mean over seeds hides."""
    phrases = []
    for run in ("fedrecover", CORRECTED):
        shares = {
            name: {seed: track.sums.get("client_rounds_saved") for seed, track in one.tracks(run).items()}
            for name, one in name_federations(found).items()
        }
        known = [each for seeds in shares.values() for each in seeds.values() if each is not None]
        few = [
            f"seed {seed} of {name}"
            for name, seeds in shares.items()
            for seed, each in seeds.items()
            if each is not None and each < FEW
        ]
        phrases += [f"{len(few)} of {len(known)} runs of {LABELS[run]}: {join_names(few)}"] if few else []
    return "; ".join(phrases)


def _range(values: Iterable[float | None], spec: str) -> str:
    """Return the lowest and the highest value as text; one of them if they agree."""
    known = sorted(value for value in values if value is not None)
    return " to ".join(dict.fromkeys(format(each, spec) for each in known[:1] + known[-1:])) or "none"


NOTES: dict[str, Note] = {
    "time of a round of FedUHB, divided by that of Retrain": compare_pace,
    "runs in which FedUHB's stop rule fires, with a window of all / 5 / 10 / 20 rounds": count_ended,
    "accuracy of FedUHB against FedEraser, at equal client work": lambda found: compare_at_equal_work(
        found, other="federaser"
    ),
    "accuracy of FedUHB against FedRecover, at equal client work": lambda found: compare_at_equal_work(
        found, other="fedrecover"
    ),
    "test loss of FedUHB without the stop rule turns up": find_rising_loss,
    "accuracy of FedUHB with the stop rule, by images a client": compare_images,
    "the paper's seconds per round of FedUHB, divided by those of Retrain": compare_printed_seconds,
    f"excess seconds of rounds over {WARM} times the median (probably compiling), which totals leave out": sum_slow_rounds,
    "rounds that FedEraser runs": describe_eraser,
    "client rounds of FedRecover": describe_recover,
    "accuracy that correction adds to FedRecover": describe_correction,
    f"runs in which FedRecover saves under {FEW:.0%} of the client rounds": find_spendthrifts,
}

"""What was noticed beside the paper's claims: sentences made from the numbers, each left out where its numbers are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from feduhb.report.words import listed, number
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.report.claims_parts import (
    DATA,
    MNIST,
    Evidence,
    at,
    clear,
    grouped,
    named,
    paired,
    share,
)
from feduhb_reproduction.report.claims_recover import EARLY, LATE, ends
from feduhb_reproduction.report.federations import Federation, sized
from feduhb_reproduction.report.measures import UHB, UHB_ON, WARM, final, seconds, steady, stops, total
from feduhb_reproduction.report.printed import CORRECTED, LABELS, LAMBDA, METHODS, SECONDS

FEW = 0.1  # of the client rounds: who saves fewer has nearly everyone train in nearly every round
UP = 1.05  # times its lowest, from which on a test loss has turned up
SIDES = ("clearly ahead", "neither clearly ahead nor behind", "clearly behind")


def noticed(evidence: Evidence) -> list[str]:
    """Give every sentence that these numbers fill."""
    makers: list[Callable[[Evidence], Iterable[str]]] = [
        worked,
        scheduled,
        compiled,
        fired,
        turned,
        images,
        recovering,
        spendthrift,
    ]
    return [sentence for make in makers for sentence in make(evidence)]


def scheduled(evidence: Evidence) -> Iterator[str]:
    """Read the paper's seconds a round as totals over the scheduled rounds."""
    for data, name in DATA.items():
        found = evidence.clean(data)
        if not found:
            continue
        rounds, ratio = found[0].rounds, SECONDS[data][UHB] / SECONDS[data][RETRAIN]
        ended = [stops(one) for one in found]
        ran = _means((each.executed.mean for each in ended), ".1f")
        here = (
            f"ran {ran} here" if any(each.fires for each in ended) else f"never fired here in {rounds} rounds"
        )
        yield (
            f"{name}: the paper's seconds a round of FedUHB and Retrain stand as {ratio:.3f} to 1. A round of FedUHB asks the same work of "
            f"the same clients, so that the whole time over {rounds} scheduled rounds is a likely reading: it would fit a run of "
            f"{ratio * rounds:.1f} rounds. The rule with λ {found[0].cells[0].place.scale:g} {here}."
        )


def worked(evidence: Evidence) -> Iterator[str]:
    """Compare at equal work of clients: FedUHB at the round by which it has asked what the other asks in all."""
    for data, name in DATA.items():
        for other in ("federaser", "fedrecover"):
            found = {
                label: seen
                for label, one in named(evidence.clean(data)).items()
                if (seen := _worked(one, other))
            }
            if not found:
                continue
            sides = {words: [n for n, (_, _, side) in found.items() if side == words] for words in SIDES}
            told = "; ".join(f"{words} for {grouped(names)}" for words, names in sides.items() if names)
            epochs = _means((each for each, _, _ in found.values()), ",.0f")
            rounds = _means((each for _, each, _ in found.values()), ",.0f")
            yield (
                f"{name}, at equal client work: {LABELS[other]} takes {epochs} client epochs in all, with which FedUHB, its rule off, runs {rounds} rounds. "
                f"There FedUHB is {told}."
            )


def _worked(federation: Federation, other: str) -> tuple[float, float, str] | None:
    """Give the other's client epochs, the rounds that FedUHB runs with them, and who is ahead."""
    epochs, ours = (total(federation, run, "client_epochs").mean for run in (other, UHB_ON))
    rounds = total(federation, UHB_ON, "rounds").mean
    if not epochs or not ours or not rounds:
        return None
    end = min(int(epochs * rounds / ours), federation.rounds)
    if not end:
        return None
    one, two = at(federation, UHB_ON, end), at(federation, other, federation.rounds)
    ahead, level, behind = SIDES
    side = ahead if clear(paired(one, two)) else behind if clear(paired(two, one)) else level
    return epochs, float(end), side


def compiled(evidence: Evidence) -> Iterator[str]:
    """Say what compiling cost, and whom: the first run that needs a kernel pays for it."""
    for data, name in DATA.items():
        timed = [one.timed for one in evidence.clean(data)]
        lost = {run: _lost([one for one in timed if one is not None], run) for run in METHODS}
        told = [f"{number(each)} s of {LABELS[run]}" for run, each in lost.items() if each > 0]
        if told:
            yield (
                f"{name}: in the timed cells {listed(told)} went into rounds of more than {WARM} times their run's median, most likely to "
                "compile kernels. Whoever runs first pays for that; no total here counts it."
            )


def _lost(timed: Sequence[Federation], run: str) -> float:
    """Seconds beyond the usual."""
    took = [seconds(track) for one in timed for track in one.tracks(run).values()]
    return sum(sum(each) - sum(steady(each)) for each in took if each)


def fired(evidence: Evidence) -> Iterator[str]:
    """Say in how many cells the rule fires at all, with each window."""
    for data, name in DATA.items():
        found = [one for one in evidence.clean(data) if one.tracks(UHB_ON)]
        if not found:
            continue
        told = []
        for window in (None, 5, 10, 20):
            each = [stops(one, scale=one.cells[0].place.scale, window=window) for one in found]
            spelled = "all rounds so far" if window is None else f"{window} rounds"
            told.append(
                f"{sum(s.fires for s in each)} of {sum(s.n for s in each)} runs with a window of {spelled}"
            )
        yield f"{name}: with λ {found[0].cells[0].place.scale:g} the stop rule fires in {listed(told)}."


def turned(evidence: Evidence) -> Iterator[str]:
    """Say where the test loss of FedUHB turns up before the last round."""
    for data, name in DATA.items():
        found = [one for one in evidence.clean(data) if final(one, UHB_ON, "test_loss").n]
        lows = {label: low for label, one in named(found).items() if (low := _turn(one)) is not None}
        if not lows:
            continue
        told = listed([f"{low:.1f} for {label}" for label, low in lows.items()])
        more = sum(_rises(one) for label, one in named(found).items() if label in lows)
        rising = f" The accuracy goes on rising in {more} of these." if more else ""
        yield (
            f"{name}: in {len(lows)} of {len(found)} federations the test loss of FedUHB without its rule turns up: it is lowest at round "
            f"{told}, and ends more than {UP - 1:.0%} higher.{rising}"
        )


def _turn(federation: Federation) -> float | None:
    """The mean round of the lowest test loss, where the last is clearly higher."""
    tracks = [values for track in federation.tracks(UHB_ON).values() if (values := track.of("test_loss"))]
    if fmean(values[-1] for values in tracks) <= UP * fmean(min(values) for values in tracks):
        return None
    return fmean(1 + values.index(min(values)) for values in tracks)


def _rises(federation: Federation) -> bool:
    """Whether the accuracy is higher at the end than where the loss is lowest."""
    low = round(_turn(federation) or federation.rounds)
    return clear(paired(at(federation, UHB_ON, federation.rounds), at(federation, UHB_ON, low)))


def images(evidence: Evidence) -> Iterator[str]:
    """Compare the number of images of a client by Retrain's accuracy with the paper's."""
    found = [one for one in evidence.clean(MNIST) if final(one, RETRAIN).n]
    sizes = dict.fromkeys(one.per_client for one in found)
    if len(sizes) < 2:
        return
    told = [
        f"{_means((final(one, UHB).mean for one in found if one.per_client == size), '.1%')} with {sized(size)}"
        for size in sizes
    ]
    _, accuracy = LAMBDA[MNIST][0.6]
    yield f"MNIST: the paper does not say how many images a client has. FedUHB, under its rule, ends at {listed(told)}; the paper's is at {accuracy:.2%}."


def recovering(evidence: Evidence) -> Iterator[str]:
    """Say what FedRecover saves, and what correction changes."""
    for data, name in DATA.items():
        found = [one for one in evidence.clean(data) if one.tracks("fedrecover") and one.tracks(CORRECTED)]
        if not found:
            continue
        saved = [
            _means((total(one, run, "client_rounds_saved").mean for one in found), ".0%")
            for run in ("fedrecover", CORRECTED)
        ]
        early = _means(
            (_gain(one, ends(one)[EARLY]) for one in found),
            "+.1f",
        )
        gains = _means((_gain(one, one.rounds) for one in found), "+.1f")
        yield (
            f"{name}: FedRecover without periodic correction saves {saved[0]} of the client rounds, with it {saved[1]}; "
            f"correction changes the accuracy by {early} points {EARLY}, in which every client trains again, and by {gains} {LATE}."
        )


def spendthrift(evidence: Evidence) -> Iterator[str]:
    """Say where FedRecover saves next to nothing, which a mean over seeds hides."""
    for data, name in DATA.items():
        for run in ("fedrecover", CORRECTED):
            saved = {
                label: {
                    seed: track.sums["client_rounds_saved"]
                    for seed, track in one.tracks(run).items()
                    if "client_rounds_saved" in track.sums
                }
                for label, one in named(evidence.clean(data)).items()
            }
            few = {
                label: [seed for seed, each in seeds.items() if each < FEW] for label, seeds in saved.items()
            }
            told = [
                f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])} of {label}"
                for label, seeds in few.items()
                if seeds
            ]
            if told:
                yield (
                    f"{name}: in {sum(map(len, few.values()))} of {sum(map(len, saved.values()))} runs ({listed(told)}) {LABELS[run]} saves less than {FEW:.0%} of the "
                    "client rounds: nearly everyone trains in nearly every round ([how that can be](methods/fedrecover.md)). A mean over seeds "
                    "hides that; its spread shows it."
                )


def _gain(federation: Federation, end: int) -> float:
    """Points that correction brings by a round."""
    return 100 * (paired(at(federation, CORRECTED, end), at(federation, "fedrecover", end)).mean or 0.0)


def _means(values: Iterable[float | None], spelled: str) -> str:
    """Spell the range of the federations' means."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return share(None)
    low, high = format(known[0], spelled), format(known[-1], spelled)
    return low if low == high else f"{low} to {high}"

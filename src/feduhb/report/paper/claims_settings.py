"""Claims on what the stop rule and momentum do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from feduhb.cells import RETRAIN
from feduhb.report.paper.claims_parts import (
    DATA,
    HOLDS,
    MNIST,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    across,
    both,
    clear,
    everywhere,
    middle,
    named,
    ordered,
    paired,
    share,
)
from feduhb.report.paper.federations import Federation
from feduhb.report.paper.measures import UHB_ON, best_step, final, momenta, over, reached, steps, stops
from feduhb.report.paper.printed import LAMBDA

RULE, MOMENTUM = "Stop rule", "Momentum"
LOSS = 0.005  # of accuracy that stopping may cost
SCALES = (0.2, 0.4, 0.6, 0.8, 1.0)
FLAT = 0.001  # of accuracy that a larger lambda may gain and still be called no gain
SAME_ROUNDS, SAME_ACCURACY = 3, 0.01  # how near to the paper's numbers is the same
OPEN = "the paper gives neither the rule's window nor the images of a client"


def stopped(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether the rule saves rounds and costs no accuracy."""
    lead = "Seeds in which the rule fires / rounds run / points from the accuracy of going on to the accuracy of stopping"
    brief = ("{} rounds run, {} points from going on", ".1f", "+.1f")
    return across(evidence, data, _stopped, lead, brief)


def _stopped(federation: Federation) -> Seen | None:
    found, whole = stops(federation, scale=federation.cells[0].place.scale), final(federation, UHB_ON).mean
    if found.executed.mean is None or found.accuracy.mean is None or whole is None:
        return None
    gain = found.accuracy.mean - whole
    values = found.executed.mean, 100 * gain
    told = (
        f"{found.fires} of {found.n} / {found.executed.mean:.1f} of {federation.rounds} / {100 * gain:+.1f}"
    )
    if 0 < found.fires < found.n:
        return Seen(None, told, "it fires in some seeds only", values)
    if not found.fires or gain >= -LOSS:
        return Seen(bool(found.fires), told, values=values)
    return Seen(None, told, "it saves rounds, at a loss", values)


def larger(evidence: Evidence) -> Judged:
    """Judge whether a larger lambda means fewer rounds and lower accuracy."""
    lead = f"Rounds (accuracy) at λ {ordered(f'{scale:g}' for scale in SCALES)}"
    ends = (f"λ {scale:g}: {{}} rounds, {{}}" for scale in (SCALES[0], SCALES[-1]))
    brief = ("; ".join(ends), ".1f", ".1%", ".1f", ".1%")
    return across(evidence, MNIST, _larger, lead, brief)


def _larger(federation: Federation) -> Seen | None:
    found = [stops(federation, scale=scale) for scale in SCALES]
    rounds = [mean for each in found if (mean := each.executed.mean) is not None]
    heights = [mean for each in found if (mean := each.accuracy.mean) is not None]
    if len(heights) < len(SCALES):
        return None
    told = ordered(f"{n:.1f} ({share(h)})" for n, h in zip(rounds, heights, strict=True))
    buts = ("fewer rounds, but not always a lower accuracy", "a lower accuracy only")
    values = rounds[0], heights[0], rounds[-1], heights[-1]
    return both(falls(rounds, 0.0), falls(heights, FLAT), told, buts=buts, values=values)


def falls(values: Sequence[float], slack: float) -> bool:
    """Whether a series never rises by more than the slack, and ends below its start."""
    return all(b <= a + slack for a, b in pairwise(values)) and values[-1] < values[0]


def printed(evidence: Evidence, *, scale: float) -> Judged:
    """Judge whether lambda gives the paper's number of rounds and accuracy."""
    lead = f"Rounds (accuracy) at λ {scale:g}"
    judged = across(evidence, MNIST, partial(_printed, scale=scale), lead, ("{} rounds, {}", ".1f", ".1%"))
    return judged if judged.verdict == HOLDS else replace(judged, why=judged.why or OPEN)


def _printed(federation: Federation, *, scale: float) -> Seen | None:
    rounds, accuracy = LAMBDA[MNIST][scale]
    found = stops(federation, scale=scale)
    if found.executed.mean is None or found.accuracy.mean is None:
        return None
    long = abs(found.executed.mean - rounds) <= SAME_ROUNDS
    high = abs(found.accuracy.mean - accuracy) <= SAME_ACCURACY
    told = f"{found.executed.mean:.1f} ({share(found.accuracy.mean)})"
    return Seen(long and high, told, values=(found.executed.mean, found.accuracy.mean))


def faster(evidence: Evidence) -> Judged:
    """Judge whether every larger beta reaches Retrain's final accuracy sooner."""
    found = [one for one in evidence.clean(MNIST) if len(momenta(one)) > 2]
    if not found:
        return Judged("", UNKNOWN, "no other momentum was tried")
    lead = "Round at which each β has Retrain's final accuracy"
    brief = ("with the lowest β at round {}, with the highest at {}", ".1f", ".1f")
    return across(evidence, MNIST, _faster, lead, brief, found)


def _faster(federation: Federation) -> Seen | None:
    found = {beta: _when(federation, run) for beta, run in momenta(federation).items()}
    if not all(found.values()):
        return None
    means = {beta: middle(each) for beta, each in found.items()}
    told = ordered(f"{mean:.1f} (β {beta:g})" for beta, mean in means.items())
    best, ends = min(means, key=means.__getitem__), (means[min(means)], means[max(means)])
    if falls(list(means.values()), 0.0):
        return Seen(True, told, values=ends)
    if best == min(means):
        return Seen(False, told, values=ends)
    but = (
        f"only up to β = {best:g}"
        if best < max(means)
        else f"fastest with β = {best:g}, but not with every step"
    )
    return Seen(None, told, but, ends)


def _when(federation: Federation, run: str) -> dict[int, float]:
    """The round with Retrain's final accuracy by seed; one more than there are where it never comes."""
    return {seed: float(n or federation.rounds + 1) for seed, n in reached(federation, run).rounds.items()}


def tuned(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether momentum does more than a larger server step, tuned, would."""
    found = [one for one in evidence.clean(data) if len(steps(one)) > 1]
    if not found:
        return Judged("", UNKNOWN, f"no other server step was tried on {DATA[data]}")
    lead = "Round with Retrain's final accuracy (final accuracy) of FedUHB, its rule off / of FedAvg with the server step that is soonest / that ends best"
    brief = (
        "at round {}, with a tuned step at {}; ends at {}, with a tuned step at {}",
        ".1f",
        ".1f",
        ".1%",
        ".1%",
    )
    return across(evidence, data, _tuned, lead, brief, found)


def _tuned(federation: Federation) -> Seen | None:
    step, tried = best_step(federation), steps(federation)
    if step is None or not federation.tracks(UHB_ON):
        return None
    when = {each: middle(_when(federation, run)) for each, run in tried.items()}
    soon = min(when, key=when.__getitem__)
    sooner = clear(paired(_when(federation, tried[soon]), _when(federation, UHB_ON)))
    shown = [f"{_shown(federation, tried[each])}, step {each:g}" for each in (soon, step)]
    ends = [final(federation, run).mean for run in (UHB_ON, tried[step])]
    buts = ("sooner, but no better at the end", "better at the end, but no sooner")
    return both(
        sooner,
        clear(over(federation, UHB_ON, tried[step])),
        ordered([_shown(federation, UHB_ON), *shown]),
        buts=buts,
        values=(middle(_when(federation, UHB_ON)), when[soon], *ends),
    )


def _shown(federation: Federation, run: str) -> str:
    return f"{middle(_when(federation, run)):.1f} ({share(final(federation, run).mean)})"


def stable(evidence: Evidence) -> Judged:
    """Judge whether the accuracy falls less from round to round with momentum than without."""
    found = {name: one for data in DATA for name, one in named(evidence.clean(data), data).items()}
    lead = (
        "Largest fall of accuracy from a round to the next, in points, of FedUHB, its rule off / of Retrain"
    )
    return everywhere(found, _stable, lead, ("falls by {} points; Retrain's by {}", ".1f", ".1f"))


def _stable(federation: Federation) -> Seen | None:
    ours, theirs = _drops(federation, UHB_ON), _drops(federation, RETRAIN)
    less = paired(theirs, ours)
    if not less.n:
        return None
    most = 100 * middle(ours), 100 * middle(theirs)
    return Seen(clear(less), ordered(f"{each:.1f}" for each in most), values=most)


def _drops(federation: Federation, run: str) -> dict[int, float]:
    tracks = {seed: track.of("test_accuracy") for seed, track in federation.tracks(run).items()}
    return {seed: max(0.0, *(a - b for a, b in pairwise(v))) for seed, v in tracks.items() if len(v) > 1}


CLAIMS = [
    *(
        Claim(
            RULE, "abstract, II-B, IV-B.5",
            f"{name}: the stop rule saves rounds and still gives the best model.",
            f"With λ 0.6 it fires in every seed, and the accuracy is at most {100 * LOSS:g} points below that of going on to the last round.",
            partial(stopped, data=data),
        )
        for data, name in DATA.items()
    ),
    Claim(
        RULE, "IV-B.5, Fig. 5b",
        "MNIST: a larger λ means fewer rounds and a lower accuracy.",
        f"From λ to λ the mean number of rounds never rises, nor the accuracy by more than {100 * FLAT:g} points, and both fall in all.",
        larger,
    ),
    *(
        Claim(
            RULE, "IV-B.5, Fig. 5b",
            f"MNIST: λ = {scale:g} gives {rounds} rounds and {accuracy:.2%}.",
            f"The means are within {SAME_ROUNDS} rounds and {100 * SAME_ACCURACY:g} point of these, the window being all rounds so far.",
            partial(printed, scale=scale),
        )
        for scale, (rounds, accuracy) in LAMBDA[MNIST].items()
    ),
    Claim(
        MOMENTUM, "IV-B.5, Fig. 5a",
        "MNIST: a higher β converges faster.",
        "Without the rule, the mean round with Retrain's final accuracy falls from each β to the next.",
        faster,
    ),
    *(
        Claim(
            MOMENTUM, "title, abstract, II-B",
            f"{DATA[data]}: it is the heavy ball that makes retraining fast.",
            "FedUHB without its rule has Retrain's final accuracy clearly sooner than FedAvg with the server step that is soonest, and ends clearly "
            "higher than with the step that ends best (both chosen on the test data, which favours them).",
            partial(tuned, data=data),
        )
        for data in DATA
    ),
    Claim(
        MOMENTUM, "I, II-B",
        "Momentum makes unlearning more stable.",
        "The largest fall of test accuracy from one round to the next is clearly smaller than Retrain's.",
        stable,
    ),
]  # fmt: skip

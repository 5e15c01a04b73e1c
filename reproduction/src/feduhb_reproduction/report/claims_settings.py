"""Claims on what the stop rule and momentum do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from feduhb.report.words import listed
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.report.claims_parts import (
    BOTH,
    CONDITIONS,
    DATA,
    HOLDS,
    MNIST,
    OFF,
    REPLAYED,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    able,
    across,
    also,
    both,
    clear,
    every_data,
    everywhere,
    middle,
    named,
    ordered,
    paired,
    several,
    share,
    when,
)
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import (
    COARSE,
    UHB_ON,
    Spread,
    Stops,
    best_step,
    final,
    momenta,
    over,
    reached,
    steps,
    stops,
    untried,
)
from feduhb_reproduction.report.printed import LAMBDA
from feduhb_reproduction.report.tuning import WINDOWS

RULE, MOMENTUM = "Stop rule", "Momentum"
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
    found, whole = stops(federation, scale=federation.cells[0].place.scale), final(federation, UHB_ON)
    if found.executed.mean is None or found.accuracy.mean is None or whole.mean is None:
        return None
    lost = Spread(tuple(on - off for on, off in zip(whole.values, found.accuracy.values, strict=True)))
    gain = 0.0 - (lost.mean or 0.0)
    values = found.executed.mean, 100 * gain
    told = (
        f"{found.fires} of {found.n} / {found.executed.mean:.1f} of {federation.rounds} / {100 * gain:+.1f}"
    )
    if 0 < found.fires < found.n:
        return Seen(None, told, "it fires in some seeds only", values)
    if not found.fires or not clear(lost):
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
    """Judge whether lambda gives the paper's number of rounds and accuracy, in some federation and with some window."""
    found = named(evidence.clean(MNIST))
    lead = f"Rounds (accuracy) at λ {scale:g}, the window being all rounds so far"
    judged = across(evidence, MNIST, partial(_printed, scale=scale), lead, ("{} rounds, {}", ".1f", ".1%"))
    tried = {
        f"{name} with a window of {'all rounds so far' if window is None else f'{window} rounds'}": ends
        for name, one in found.items()
        for window in WINDOWS
        if (ends := stops(one, scale=scale, window=window)).n
    }
    if judged.verdict in {HOLDS, UNKNOWN} or not tried:
        return judged
    near = min(tried, key=lambda name: _off(tried[name], scale))
    hits = [name for name, ends in tried.items() if _off(ends, scale) <= 1]
    if hits:
        return replace(judged, verdict=CONDITIONS, why=f"for {listed(hits)}")
    shown = f"{tried[near].executed.mean or 0.0:.1f} rounds and {share(tried[near].accuracy.mean)}"
    return replace(judged, verdict=UNKNOWN, why=f"{OPEN}; of those tried the nearest is {near}: {shown}")


def _off(ends: Stops, scale: float) -> float:
    """How far from the paper's rounds and accuracy, in what still is the same; up to 1 is the same."""
    rounds, accuracy = LAMBDA[MNIST][scale]
    apart = abs((ends.executed.mean or 0.0) - rounds) / SAME_ROUNDS
    return max(apart, abs((ends.accuracy.mean or 0.0) - accuracy) / SAME_ACCURACY)


def _printed(federation: Federation, *, scale: float) -> Seen | None:
    found = stops(federation, scale=scale)
    if found.executed.mean is None or found.accuracy.mean is None:
        return None
    told = f"{found.executed.mean:.1f} ({share(found.accuracy.mean)})"
    return Seen(_off(found, scale) <= 1, told, values=(found.executed.mean, found.accuracy.mean))


def faster(evidence: Evidence) -> Judged:
    """Judge whether every larger beta reaches Retrain's final accuracy sooner."""
    found = {name: one for name, one in every_data(evidence).items() if len(momenta(one)) > 2}
    if not found:
        return Judged("", UNKNOWN, "no other momentum was tried")
    lead = "Round at which each β has Retrain's final accuracy"
    brief = ("with the lowest β at round {}, with the highest at {}", ".1f", ".1f")
    few = listed(
        [
            f"{len(one)} of {name}"
            for data, name in DATA.items()
            if (one := [n for n in found if n.startswith(DATA[data])])
        ]
    )
    return also(everywhere(found, _faster, lead, brief), f"federations tried: {few}")


def _faster(federation: Federation) -> Seen | None:
    found = {beta: _when(federation, run) for beta, run in momenta(federation).items()}
    if not all(found.values()):
        return None
    means = {beta: middle(each) for beta, each in found.items()}
    told = ordered(f"{mean:.1f} (β {beta:g})" for beta, mean in means.items())
    ends = means[min(means)], means[max(means)]
    gains = {pair: clear(paired(found[pair[0]], found[pair[1]])) for pair in pairwise(found)}
    return several(
        {f"from β {low:g} to {high:g}": gained for (low, high), gained in gains.items()},
        told,
        "{} only",
        ends,
    )


def _when(federation: Federation, run: str) -> dict[int, float]:
    return when(federation, reached(federation, run))


def tuned(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether momentum does more than a larger server step, tuned, would."""
    every = named(evidence.clean(data))
    found = {name: one for name, one in every.items() if len(steps(one)) > 1}
    if not found:
        return Judged("", UNKNOWN, f"no other server step was tried on {DATA[data]}")
    lead = "Round with Retrain's final accuracy (final accuracy) of FedUHB, its rule off / of FedAvg with the server step that is soonest / that ends best"
    words = "at round {}, with a tuned step at {}; ends at {}, with a tuned step at {}"
    judged = everywhere(found, _tuned, lead, (words, ".1f", ".1f", ".1%", ".1%"))
    return able(every, judged, found, "", "where no other server step was tried")


def _tuned(federation: Federation) -> Seen | None:
    step, tried = best_step(federation), steps(federation)
    if step is None or not federation.tracks(UHB_ON):
        return None
    arrives = {each: middle(_when(federation, run)) for each, run in tried.items()}
    soon = min(arrives, key=arrives.__getitem__)
    sooner = clear(paired(_when(federation, tried[soon]), _when(federation, UHB_ON)))
    shown = [f"{_shown(federation, tried[each])}, step {each:g}" for each in (soon, step)]
    ends = [final(federation, run).mean for run in (UHB_ON, tried[step])]
    buts = ("sooner, but no better at the end", "better at the end, but no sooner")
    seen = both(
        sooner,
        clear(over(federation, UHB_ON, tried[step])),
        ordered([_shown(federation, UHB_ON), *shown]),
        buts=buts,
        values=(middle(_when(federation, UHB_ON)), arrives[soon], *ends),
    )
    coarse = untried(federation, soon, step)
    return replace(seen, holds=None, but=coarse) if seen.holds and coarse else seen


def _shown(federation: Federation, run: str) -> str:
    return f"{middle(_when(federation, run)):.1f} ({share(final(federation, run).mean)})"


def stable(evidence: Evidence) -> Judged:
    """Judge whether the accuracy falls less from round to round with momentum than without."""
    found = every_data(evidence)
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
            "With λ 0.6 it fires in every seed, and the accuracy is not clearly below that of going on to the last round.",
            partial(stopped, data=data),
            BOTH,
        )
        for data, name in DATA.items()
    ),
    Claim(
        RULE, "IV-B.5, Fig. 5b",
        "MNIST: a larger λ means fewer rounds and a lower accuracy.",
        f"From λ to λ the mean number of rounds never rises, nor the accuracy by more than {100 * FLAT:g} points, and both fall in all.",
        larger,
        REPLAYED,
    ),
    *(
        Claim(
            RULE, "IV-B.5, Fig. 5b",
            f"MNIST: λ = {scale:g} gives {rounds} rounds and {accuracy:.2%}.",
            f"The means are within {SAME_ROUNDS} rounds and {100 * SAME_ACCURACY:g} point of these in every federation, the window being all rounds so far; "
            "partly, in some federation with some window. If in none of those tried, it cannot be judged.",
            partial(printed, scale=scale),
            REPLAYED,
        )
        for scale, (rounds, accuracy) in LAMBDA[MNIST].items()
    ),
    Claim(
        MOMENTUM, "IV-B.5, Fig. 5a",
        "A higher β converges faster.",
        "Without the rule, Retrain's final accuracy comes clearly sooner with each β than with the one before.",
        faster,
        OFF,
    ),
    *(
        Claim(
            MOMENTUM, "title, abstract, II-B",
            f"{DATA[data]}: it is the heavy ball that makes retraining fast.",
            "FedUHB without its rule has Retrain's final accuracy clearly sooner than FedAvg with the server step that is soonest, and ends clearly "
            "higher than with the step that ends best (both chosen on the test data, which favours them); each of these steps has others beside it, less "
            f"than a factor of {COARSE:g} away, so that it is tuned.",
            partial(tuned, data=data),
            OFF,
        )
        for data in DATA
    ),
    Claim(
        MOMENTUM, "I, II-B",
        "Momentum makes unlearning more stable.",
        "The largest fall of test accuracy from one round to the next is clearly smaller than Retrain's.",
        stable,
        OFF,
    ),
]  # fmt: skip

"""Does a method begin at the fresh model that it is given, and is that model fresh?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from feduhb.audit.attacks.membership import Candidates, score_losses
from feduhb.audit.controls import perturb
from feduhb.audit.measures import compute_accuracy, compute_chance, compute_constant_loss
from feduhb.audit.own_code import GAP, GUESSES
from feduhb.audit.result import Check
from feduhb.audit.statistics import compute_roc
from feduhb.audit.verdict import explain_uselessness
from feduhb.core.flat import count_statistics, flatten
from feduhb.core.fresh import DRAWS, draw_several, find_shared
from feduhb.core.seeds import generator, seed_for
from feduhb.engines.scoring import score_model
from feduhb.runs.loop import carry_statistics
from feduhb.runs.rollback import SHARED_RECORD
from feduhb.runs.run import Run
from feduhb.runs.start import describe_start, explain_given

BEGINNING = "Given two draws of a fresh model"
BEGINNING_GIVEN = "Given the start of the run, and this start after noise was added to it"
GIVEN = "the model brings a start of its own, which may hold what another run learned"
KNOWS = "The run's fresh model does well on test data"
NAMED = 6  # carried tensors that a note names
CONTINUED = (
    "The run continued a training from the model that was kept after {} rounds. The check in a federation that never held the "
    "forgotten data runs every round from the fresh model, so it judges that model too."
)
UNDRAWN = "Fresh draws of the model were not compared, because its start was given."
DOUBTED = "The given start may have seen the forgotten data, whatever is declared: see the notes."
UNJUDGED = "The model's parameters are too small to tell whether fresh draws of it share weights."


def check_beginning(run: Run) -> Check:
    """Return whether a run's method begins at w[0]: ``init(w0).params`` must equal w0, bit for bit.

    Two draws are tried: the run's own w[0] and another one, or a given start and that start with noise. A method
    that begins elsewhere, such as at stored weights, can give the same weights with and without the forgotten
    data, so comparing those does not find it.
    """
    what = BEGINNING_GIVEN if run.federation.start == "given" else BEGINNING
    draws = [_begin(run, module) for module in (run.federation.fresh_model(), _draw_other(run))]
    if all(begun.dtype == start.dtype and torch.equal(begun, start) for start, begun in draws):
        return Check("beginning", f"{what}: the method begins there, bit for bit.", True, 0.0)
    apart = max(_measure_distance(start, begun) for start, begun in draws)
    says = f"{what}: the method begins elsewhere, up to {apart:.2g} apart, so it does not start afresh."
    return Check("beginning", says, False, apart)


def note_start(run: Run) -> list[str]:
    """Return notes on what a run starts from that was not drawn: a kept model, a given start, frozen parameters, buffers."""
    start = describe_start(run.federation.fresh_model(), given=run.federation.start == "given")
    notes = [CONTINUED.format(run.restart_round)] if run.restart_round else []
    if run.restart_round and run.federation.is_remote:
        notes.append(SHARED_RECORD)
    if start is None:
        return notes
    notes += filter(None, [explain_given(start)])
    if start.carried:
        some, others = ", ".join(start.carried[:NAMED]), len(start.carried) - NAMED
        more = f" and {others} other{'s'[: others != 1]}" if others > 0 else ""
        notes.append(
            f"Carried as given, never drawn: {some}{more} (SHA-256 {start.carried_sha256}). Every world of this audit has them, so it "
            "cannot find what a training might have left there."
        )
    return notes


def explain_start(run: Run, retrain: Run, notes: list[str]) -> str | None:
    """Return why a run's fresh model may not be fresh, or None.

    Whatever the method, several draws must share no weights, and not all of them may do well on test data. The run's own
    w[0] must not do well either, because a factory may be honest for most seeds. A factory that returns the old model with a
    little noise, or with its units in another order, can pass every comparison of weights.

    Args:
        notes: get a note if the model is too small to be judged.
    """
    model = run.federation.model
    shared = find_shared(draw_several(model, run.seed))
    if shared.names:
        return f"Fresh draws of the model share weights in {shared}: {GIVEN}."
    if not shared.judged:
        notes.append(UNJUDGED)
    accuracy = _compute_accuracy(retrain.model(), run)
    if accuracy is None:
        return _explain_loss(run, retrain)
    if all(_is_useful(draw, run, accuracy) for draw in draw_several(model, run.seed)):
        return f"Every one of {DRAWS} fresh draws of the model does well on test data: {GIVEN}."
    return _explain_accuracy(run, accuracy)


def explain_given_start(run: Run, candidates: Candidates) -> str | None:
    """Return how a given start contradicts the declaration that it never saw clients' data, or None.

    Its loss on the forgotten examples must not be smaller than on held-out examples of the same clients, which the loss
    attack tells by its 99 % interval.
    """
    start, loss = run.federation.fresh_model(), run.federation.loss
    for part, what in ((candidates, "forgotten examples"), (candidates.canaries, "canaries")):
        if not part.members:
            continue
        found = compute_roc(score_losses(start, part, loss))
        if found.interval.low > 0.5:
            return (
                f"The given start itself knows the {what} better than held-out ones (loss attack, AUC {found.auc:.3f}, 99 % interval "
                f"{found.interval.low:.3f} to {found.interval.high:.3f}), although it is declared that it never saw clients' data."
            )
    return None


def _explain_accuracy(run: Run, retrain: float) -> str | None:
    """Return how accurate w[0] is if that is nearer to Retrain than to the best of many models that know nothing, or None."""
    start = run.federation.fresh_model()
    if not _is_useful(start, run, retrain):  # nearly always, and the rest takes long
        return None
    found = _compute_accuracy(start, run) or 0.0
    guess = max(_compute_accuracy(one, run) or 0.0 for one in _shuffle_start(run))
    if retrain < guess + GAP or found < (guess + retrain) / 2:
        return None
    return f"{KNOWS}, with an accuracy of {found:.1%}, and Retrain has {retrain:.1%}: {GIVEN}."


def _explain_loss(run: Run, retrain: Run) -> str | None:
    """Return the same by the loss, for targets that are not labels. A constant answer is also a model that knows nothing."""
    found, goal = _compute_loss(run.federation.fresh_model(), run), _compute_loss(retrain.model(), run)
    guess = compute_constant_loss(run.federation)
    if not found <= (guess + goal) / 2:  # nearly always, and the rest takes long
        return None
    guess = min(guess, *(_compute_loss(one, run) for one in _shuffle_start(run)))
    if not (goal <= (1 - GAP) * guess and found <= (guess + goal) / 2):
        return None
    return f"{KNOWS}, with a loss of {found:.3g}, and Retrain has {goal:.3g}: {GIVEN}."


def _shuffle_start(run: Run) -> Iterator[nn.Module]:
    """Yield models that know nothing: w[0] with the values of each parameter in a random order.

    Other draws would not do, because a factory could return a few that know as much.
    """
    for number in range(GUESSES):
        draw, model = generator(run.seed, "shuffle", number), run.federation.fresh_model()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.flatten()[torch.randperm(p.numel(), generator=draw)].view_as(p))
        yield model


def _is_useful(model: nn.Module, run: Run, retrain: float) -> bool:
    accuracy = _compute_accuracy(model, run)
    return (
        accuracy is not None
        and explain_uselessness(accuracy, retrain, compute_chance(run.federation)) is None
    )


def _compute_accuracy(model: nn.Module, run: Run) -> float | None:
    return compute_accuracy(model, [run.federation.test], run.federation)


def _compute_loss(model: nn.Module, run: Run) -> float:
    return score_model(model, run.federation.test, run.federation.loss)[0]


def _draw_other(run: Run) -> nn.Module:
    """Return another start than the run's own."""
    if run.federation.start == "given":
        return perturb(run.federation.fresh_model(), run.seed)
    return run.federation.reseed(seed_for(run.seed, "beginning")).fresh_model()


def _begin(run: Run, module: nn.Module) -> tuple[Tensor, Tensor]:
    """Return a start, and the weights at which the method begins if it is given that start."""
    start, method = flatten(module), carry_statistics(run.method, count_statistics(module))
    return start, method.init(start.clone()).params.detach().cpu()


def _measure_distance(start: Tensor, begun: Tensor) -> float:
    """Return the largest difference of two weights; 0 if there is none that can be given as a number."""
    if start.shape != begun.shape:
        return 0.0
    apart = float((start.double() - begun.double()).abs().max())
    return apart if math.isfinite(apart) else 0.0

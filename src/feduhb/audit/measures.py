"""What an audit measures on finished models: accuracies, distances, a backdoor, relearning and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.audit.attacks.membership import TEST, Answers, Models, choose_device, compute_answers, load_model
from feduhb.audit.controls import ShowRound
from feduhb.audit.result import (
    ORIGINAL,
    RETRAIN,
    UNLEARNED,
    BackdoorAttack,
    ClientRow,
    Clients,
    Cost,
    Distance,
    Values,
)
from feduhb.audit.statistics import compute_difference
from feduhb.audit.verdict import Finding, judge_backdoor
from feduhb.core.flat import count_statistics, with_params
from feduhb.core.loss import find_counted
from feduhb.core.scores import FITS, OF_CLASSES, Score, choose_scores, compute_score, find_kind, is_one_of
from feduhb.core.types import ClientId, Engine, Loss
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.engines.scoring import (
    CPU_CHUNK,
    compute_outputs,
    score_model,
    score_outputs,
    stamp_test_set,
    try_scores,
)
from feduhb.errors import ConfigError, DataError
from feduhb.methods.binding import get_history
from feduhb.methods.retrain import Plain
from feduhb.runs.folder import RunFolder
from feduhb.runs.loop import run as rounds_of
from feduhb.runs.run import Run, adapt_method


class Measured(NamedTuple):
    """What is measured of one model alone."""

    accuracy: Values
    loss: Values
    scores: dict[str, Values]
    clients: dict[ClientId, float | None]  # the main score of each remaining client


def measure_model(
    run: Run,
    federation: Federation,
    request: Request,
    main: Score | None,
    scores: Mapping[str, Score],
    known: Answers,
) -> Measured:
    """Measure a model on the forgotten data, on the remaining data, on test data, and for each remaining client.

    Args:
        known: answers of models that were computed before.
    """
    model, groups, loss = load_model(run), _list_groups(federation, request), federation.loss
    x, y = federation.test.all()
    count = int(find_counted(loss, y).sum())
    tested = [(*score_outputs(compute_answers(run, TEST, x, known), y, loss), count)] if count else []
    rates = [average_rates(part) for part in (*(_rate(model, some, loss) for some in groups[:2]), tested)]
    return Measured(
        accuracy=Values(*(accuracy for accuracy, _ in rates)),
        loss=Values(*(loss for _, loss in rates)),
        scores={
            name: Values(*(measure_score(model, parts, federation, score) for parts in groups))
            for name, score in scores.items()
        },
        clients={
            client: measure_score(model, [examples], federation, main)
            for client, examples in _choose_own_data(federation, request)[1].items()
        },
    )


def compute_accuracy(model: nn.Module, parts: Iterable[Examples], federation: Federation) -> float | None:
    """Return the accuracy over several lists of examples together; None if there are no examples or no labels."""
    return average_rates(_rate(model, parts, federation.loss))[0]


def _rate(model: nn.Module, parts: Iterable[Examples], loss: Loss) -> list[tuple[float, float, int]]:
    """Return loss, accuracy and number of examples of each list that has some which the loss counts."""
    counts = [(examples, int(find_counted(loss, examples.targets).sum())) for examples in parts]
    return [(*score_model(model, examples, loss), count) for examples, count in counts if count]


def average_rates(rates: Sequence[tuple[float, float, int]]) -> tuple[float | None, float | None]:
    """Return accuracy and loss over several lists of examples together, of which the loss, accuracy and number are given.

    The accuracy is None without examples or labels, the loss without examples or if it is not finite.
    """
    total = sum(count for _, _, count in rates)
    if not total:
        return None, None
    loss, accuracy = (sum(one[place] * one[2] for one in rates) / total for place in (0, 1))
    return None if math.isnan(accuracy) else accuracy, loss if math.isfinite(loss) else None


def measure_score(
    model: nn.Module, parts: Iterable[Examples], federation: Federation, score: Score | None
) -> float | None:
    """Return a score over several lists of examples together; None if there are no examples, or it is not defined there.

    Args:
        score: None is the accuracy of labels.
    """
    if score is None:
        return compute_accuracy(model, parts, federation)
    answers = [(compute_outputs(model, x), y) for x, y in (e.all() for e in parts if len(e))]
    if not answers:
        return None
    try:
        outputs, y = (torch.cat(part) for part in zip(*answers, strict=True))
        if score.name in FITS and find_kind(outputs, y, federation.loss) not in FITS[score.name]:
            # These clients have other targets than the test set, such as probabilities of classes.
            return None
        value = compute_score(score, outputs, y, federation.loss)
    except (ConfigError, RuntimeError):  # the score was tried on test data, so these examples do not have it
        return None
    return value if math.isfinite(value) else None


def list_measured(federation: Federation) -> tuple[Score | None, dict[str, Score]]:
    """Return the main score, None for the accuracy of labels, and the scores to measure besides that accuracy.

    Raise ConfigError if a score cannot be computed on the fresh model.
    """
    model = federation.fresh_model()
    scores = {score.name: score for score in try_scores(federation, model)}
    x, y = federation.test.batch(torch.arange(min(CPU_CHUNK, len(federation.test))))
    if find_kind(compute_outputs(model, x), y, federation.loss) != "labels":
        return next(iter(scores.values()), None), scores
    return None, {name: score for name, score in scores.items() if name != "accuracy"}


def compute_chance(federation: Federation) -> float:
    """Return the accuracy of a model that always answers the commonest label of the test set."""
    y = federation.test.targets
    counted = y[find_counted(federation.loss, y)]
    return float(torch.unique(counted, return_counts=True)[1].max()) / len(counted)


def compute_constant_loss(federation: Federation) -> float:
    """Return the least test loss of a model that gives the same answer to every example, found by descent.

    Infinity if no such loss is finite.
    """
    x, y = federation.test.all()
    outputs = compute_outputs(federation.fresh_model(), x)
    answer = outputs.mean(dim=0, keepdim=True).requires_grad_()
    descent = torch.optim.LBFGS([answer], max_iter=100, line_search_fn="strong_wolfe")

    seen: list[float] = []

    def compute() -> Tensor:
        descent.zero_grad()
        loss = federation.loss(answer.expand_as(outputs), y)
        loss.backward()
        seen.append(float(loss.detach()))
        return loss

    descent.step(compute)
    return min(filter(math.isfinite, seen), default=math.inf)


def _list_groups(federation: Federation, request: Request) -> list[list[Examples]]:
    kept, gone = federation.without(request).clients, federation.forgotten(request)
    return [[*gone.values()], [*kept.values()], [federation.test]]


def _choose_own_data(federation: Federation, request: Request) -> tuple[str, dict[ClientId, Examples]]:
    """Return what each remaining client is measured on, in words and by client: held-out data if every one has some."""
    rest = federation.without(request)
    is_held = all(len(rest.held_out.get(client, ())) for client in rest.clients)
    data = rest.held_out if is_held else rest.clients
    own = {client: data[client] for client in sorted(rest.clients)}
    return "held-out data" if is_held else "training data", own


def list_clients(federation: Federation, request: Request, measured: Mapping[str, Measured]) -> Clients:
    """Return the main score of all remaining clients, by each model."""
    what, data = _choose_own_data(federation, request)
    rows = [
        ClientRow(
            client, len(own), *(measured[name].clients[client] for name in (ORIGINAL, UNLEARNED, RETRAIN))
        )
        for client, own in data.items()
    ]
    return Clients(what, tuple(rows))


def measure_distances(models: Models, federation: Federation, known: Answers) -> dict[str, Distance]:
    """Return the distances of the audited model and of the original to Retrain, by the trained parameters and by answers."""
    x, y = federation.test.all()
    answers = {name: compute_answers(run, TEST, x, known) for name, run in models.items()}
    count = len(models[RETRAIN].params) - count_statistics(federation.fresh_model())
    params = {name: run.params.detach().cpu()[:count] for name, run in models.items()}
    are_numbers = False
    if find_kind(answers[RETRAIN], y, federation.loss) != "labels" and not is_one_of(
        federation.loss, OF_CLASSES
    ):
        are_numbers = not choose_scores(answers[RETRAIN], y, federation.loss)
        if not all(bool(torch.isfinite(one).all()) for one in (*answers.values(), *params.values())):
            return {}  # a loss that is not finite has already been reported
        if not are_numbers:  # one logit z for 0 and 1 is (0, z) for two classes
            answers = {name: functional.pad(z.reshape(-1, 1), (1, 0)) for name, z in answers.items()}
    compute = compute_number_distance if are_numbers else compute_distance
    return {
        name: compute(params[name], params[RETRAIN], answers[name], answers[RETRAIN])
        for name in (UNLEARNED, ORIGINAL)
    }


def compute_number_distance(
    params: Tensor, reference: Tensor, outputs: Tensor, reference_outputs: Tensor
) -> Distance:
    """Return the distance between two models by weights [P] and by outputs that are numbers, in float64."""
    w, v = params.double(), reference.double()
    rms = (outputs.double() - reference_outputs.double()).square().mean().sqrt()
    return Distance(float((w - v).norm()), _cosine(w, v), None, None, float(rms))


def compute_distance(
    params: Tensor, reference: Tensor, outputs: Tensor, reference_outputs: Tensor
) -> Distance:
    """Return the distance between two models by weights [P] and logits [n, k] on the same examples, in float64."""
    for what, found in (("model", (params, outputs)), ("reference", (reference, reference_outputs))):
        if not all(bool(torch.isfinite(part).all()) for part in found):
            raise DataError(f"the {what} has diverged: some weights or outputs are not finite; lower lr")
    w, v = params.double(), reference.double()
    log_q, log_p = outputs.double().log_softmax(dim=1), reference_outputs.double().log_softmax(dim=1)
    kl = (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()
    differ = outputs.argmax(dim=1) != reference_outputs.argmax(dim=1)
    return Distance(float((w - v).norm()), _cosine(w, v), max(0.0, float(kl)), float(differ.double().mean()))


def _cosine(w: Tensor, v: Tensor) -> float:
    sizes = float(w.norm()), float(v.norm())
    if not all(sizes):
        return 0.0
    return max(-1.0, min(1.0, float((w / sizes[0]) @ (v / sizes[1]))))


def measure_cost(run: Run) -> Cost:
    """Return the cost of a run."""
    rounds = run.rounds
    key = "history_bytes_kept" if run.forgot is None else "history_bytes_read"
    kept = RunFolder(run.folder).result().get(key, 0) if run.folder else 0
    if not run.folder and (history := get_history(run.method)) is not None:
        kept = history.bytes
    return Cost(
        rounds=len(rounds),
        client_epochs=sum(r.client_epochs for r in rounds),
        bytes_down=sum(r.bytes_down for r in rounds),
        bytes_up=sum(r.bytes_up for r in rounds),
        history_bytes=int(kept),
        seconds=sum(r.client_seconds for r in rounds) + sum(r.server_seconds for r in rounds),
    )


def compute_relearning_goal(original: Run, request: Request, main: Score | None) -> float | None:
    """Return the original's main score on the forgotten data without canaries; None if it has none there."""
    return measure_score(load_model(original), _list_plain(original, request), original.federation, main)


def count_relearning_rounds(
    goal: float,
    start: Tensor,
    original: Run,
    request: Request,
    most: int,
    show: ShowRound,
    main: Score | None = None,
    engine: Engine | None = None,
) -> int | None:
    """Train by FedAvg from weights [P]; return the rounds until the main score on the forgotten data reaches the goal.

    Canaries are trained on but not counted: every model takes long to memorize a wrong label. Return None if ``most``
    rounds are not enough.

    Args:
        engine: of the original's clients; None makes one.
    """
    federation, gone = original.federation, _list_plain(original, request)
    module, method = federation.fresh_model(), adapt_method("retrain", original.settings)
    device = choose_device(original)
    sign = 1 if main is None or main.best == "high" else -1

    def reaches_goal(params: Tensor) -> bool:
        found = measure_score(with_params(module, params.to(device)), gone, federation, main)
        return found is not None and sign * found >= sign * goal

    if reaches_goal(start):
        return 0
    clients = list(federation.clients)
    for state, record in rounds_of(
        method, original.make_engine() if engine is None else engine, clients, Plain(start.clone()), rounds=most,
        statistics=count_statistics(module),
    ):  # fmt: skip
        show(record)
        if reaches_goal(state.params):
            return record.round + 1
    return None


def continue_training(run: Run, engine: Engine | None = None) -> Run:
    """Return a run after one more round of FedAvg with its clients.

    Args:
        engine: of these clients; None makes one.
    """
    method, clients = adapt_method("retrain", run.settings), list(run.federation.clients)
    start = Plain(run.params.clone())
    statistics = count_statistics(run.federation.fresh_model())
    made = run.make_engine() if engine is None else engine
    [(state, _)] = rounds_of(method, made, clients, start, rounds=1, statistics=statistics)
    return replace(run, state=state)


def _list_plain(original: Run, request: Request) -> list[Examples]:
    """Return the forgotten examples that are not canaries."""
    gone = original.federation.forgotten(request).values()
    return [e if e.marked is None else e.where(~e.marked) for e in gone]


def attack_by_backdoor(
    models: Models, federation: Federation, request: Request, margin: float, known: Answers
) -> tuple[BackdoorAttack, Finding] | None:
    """Return how much more often the trigger works than for Retrain; None if no client planted one."""
    stamped, planted = stamp_test_set(federation), federation.backdoor
    carriers = set() if planted is None else {*planted.clients} & {*federation.clients}
    if stamped is None or not carriers:
        return None
    x, y = stamped
    hits = {
        name: compute_answers(run, "stamped", x, known).argmax(dim=1) == y for name, run in models.items()
    }
    over = {name: compute_difference(hits[name], hits[RETRAIN]) for name in (UNLEARNED, ORIGINAL)}
    success = {name: float(hit.double().mean()) for name, hit in hits.items()}
    all_left = carriers <= {*request.clients}
    finding = judge_backdoor(
        over[UNLEARNED], over[ORIGINAL], floor=success[RETRAIN], floored=all_left, margin=margin
    )
    found = BackdoorAttack(len(y), success, over[UNLEARNED], finding.verdict, finding.says)
    return found, replace(finding, says=f"Backdoor. {finding.says}")

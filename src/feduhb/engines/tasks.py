"""What tasks need besides the gradient of a batch: squared gradients of single examples, and the labels of teachers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from feduhb.core.flat import draw_model
from feduhb.core.inputs import Inputs, call_model, call_with, map_tensors
from feduhb.core.local import Local, Loss
from feduhb.core.modules import has_batch_norm, has_dropout, list_norms, list_trained, prepare_training
from feduhb.core.seeds import seed_for
from feduhb.core.tasks import Ascend, Precondition, Relabel, Task
from feduhb.core.types import Method
from feduhb.data.federation import Examples, Federation
from feduhb.engines.batches import split_chunks
from feduhb.errors import ConfigError

AT_ONCE = 16  # examples; more would leave the cache of a CPU


def square_gradients(
    model: nn.Module, loss: Loss, x: Inputs, y: Tensor, at_once: int = AT_ONCE
) -> list[Tensor]:
    """Return the sum over examples of g ∘ g for each trained parameter, with g the gradient of one example's loss.

    Args:
        at_once: the number of examples whose gradients are held in memory at once.
    """
    trained = {name: p.detach() for name, p in list_trained(model)}

    def compute_one(params: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        alone = map_tensors(lambda part: part.unsqueeze(0), x)
        return loss(call_with(model, params, alone), y.unsqueeze(0))

    compute: Any = vmap(grad(compute_one), in_dims=(None, 0, 0))
    total = [torch.zeros_like(p) for p in trained.values()]
    for begin in range(0, len(y), at_once):
        some = slice(begin, begin + at_once)
        found = compute(trained, map_tensors(lambda part, some=some: part[some], x), y[some])
        for part, name in zip(total, trained, strict=True):
            part.add_(found[name].square().sum(dim=0))
    return total


def measure_fisher(model: nn.Module, loss: Loss, examples: Examples, device: torch.device) -> list[Tensor]:
    """Return the diagonal empirical Fisher of some examples, in evaluation mode: the mean of their squared gradients."""
    still = copy.deepcopy(model).eval()
    total = [torch.zeros_like(p) for _, p in list_trained(still)]
    for positions in split_chunks(len(examples)):
        x, y = examples.batch(positions)
        x = map_tensors(lambda part: part.to(device), x)
        for part, more in zip(total, square_gradients(still, loss, x, y.to(device)), strict=True):
            part.add_(more)
    return [part.detach() / len(examples) for part in total]


def draw_teachers(federation: Federation, count: int, device: torch.device) -> list[nn.Module]:
    """Return untrained models, drawn at (seed, "teacher", k), in evaluation mode."""
    seeds = [seed_for(federation.seed, "teacher", k) for k in range(count)]
    return [draw_model(federation.model, seed, check=False).eval().to(device) for seed in seeds]


@torch.no_grad()
def label_by_teachers(teachers: Sequence[nn.Module], examples: Examples, device: torch.device) -> Tensor:
    """Return the mean of the teachers' predicted probabilities for each example [n, classes]."""
    labels: list[Tensor] = []
    for positions in split_chunks(len(examples)):
        x = map_tensors(lambda part: part.to(device), examples.batch(positions)[0])
        predictions = torch.stack([call_model(teacher, x).softmax(dim=1) for teacher in teachers])
        labels.append(predictions.mean(dim=0))
    return torch.cat(labels)


class Elastic:
    """The penalty λ Σ_i F_i (w_i - w0_i)², around the parameters as they are now."""

    def __init__(self, parameters: list[nn.Parameter], fisher: list[Tensor], penalty: float) -> None:
        self.parameters, self.fisher, self.penalty = parameters, fisher, penalty
        self.start = [p.detach().clone() for p in parameters]

    def compute(self) -> Tensor:
        """Return the penalty at the parameters of this step."""
        parts = zip(self.parameters, self.start, self.fisher, strict=True)
        return self.penalty * torch.stack([(f * (p - w).square()).sum() for p, w, f in parts]).sum()


def check_task(task: type[Task], model: nn.Module, local: Local) -> None:
    """Raise ConfigError if clients that train in this way cannot do a task with this model."""
    if task is Ascend:
        return
    if has_batch_norm(model) or list_norms(model):
        raise ConfigError(
            f"clients cannot {task.verb}: this needs the gradient of every single example, but the model has a layer that "
            "normalises by statistics of batches; use GroupNorm or LayerNorm, or another method"
        )
    if task is Relabel:
        _check_entropy(local.loss)
    if task is Precondition:
        _check_plain(model, local)


def _check_plain(model: nn.Module, local: Local) -> None:
    what = None
    if has_dropout(model) or local.augment is not None:
        what = "dropout and augmentation draw other numbers for an example alone than in its batch"
    elif local.optimizer != "sgd" or local.momentum:
        named = local.optimizer if local.optimizer != "sgd" else f"momentum {local.momentum:g}"
        what = f"the steps have averages of their own, and the training has {named}"
    if what is not None:
        raise ConfigError(f"clients cannot {Precondition.verb}: {what}; use retrain or feduhb")


def _check_entropy(loss: Loss) -> None:
    inner = getattr(loss, "func", loss)
    if inner is not cross_entropy and not isinstance(inner, nn.CrossEntropyLoss):
        raise ConfigError(
            f"clients cannot {Relabel.verb}: teachers predict classes, but the loss is not cross-entropy; use retrain or feduhb"
        )


def check_tasks(method: Method[Any], federation: Federation, local: Local) -> None:
    """Raise ConfigError, before anything is erased, if clients of a federation cannot do the tasks of a method."""
    model = federation.fresh_model() if method.tasks else nn.Module()
    for task in method.tasks:
        check_task(task, model, local)
        if task is Relabel and federation.start == "given":
            raise ConfigError(
                f"{method.name} draws untrained teachers, but this federation starts from given weights; use retrain or feduhb"
            )
        if task is not Ascend:
            tried = model.eval() if task is Relabel else prepare_training(model)  # as an engine computes them
            _try_gradients(method, tried, local.loss, federation.test)


def _try_gradients(method: Method[Any], model: nn.Module, loss: Loss, examples: Examples) -> None:
    try:
        square_gradients(model, loss, *examples.batch(torch.arange(min(2, len(examples)))))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        why = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"{method.name} needs the gradient of every single example, and torch.func cannot compute it for this model and "
            f"loss ({why}); use retrain or feduhb"
        ) from error

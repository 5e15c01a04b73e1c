"""Tasks at a client: each against the same task written out by hand, on the loop and on the pool."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import feduhb
from federations import ragged, tensors
from feduhb.core.flat import draw_model, flatten, unflatten
from feduhb.core.seeds import seed_for
from feduhb.core.tasks import Ascend, Precondition, Relabel
from feduhb.core.types import Work, get_tasks
from feduhb.engines import make_engine
from feduhb.engines.batches import Batches
from feduhb.engines.descent import PreconditionedDescent
from feduhb.engines.tasks import measure_fisher, square_gradients
from feduhb.errors import ConfigError
from toys import Table

LOCAL = feduhb.Local(batch_size=6, lr=0.1)
CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TASKS = {
    "precondition": Precondition(0.01, eps=0.05),
    "ascend": Ascend(0.05, 0.2, clip_norm=0.5),
    "relabel": Relabel(3, penalty=2.0),
}


def with_leavers(federation=None):
    """The federation without bee and two rows of dog, for an engine that may ask both."""
    whole, request = federation or ragged(), "bee,dog:1+4"
    return whole.without(request).with_leaving(whole.forgotten(request))


def answer(engine, task, client="dog", epochs=2, **more):
    work = Work(flatten(engine.federation.fresh_model()), epochs, (client,), task=task, **more)
    (block,) = engine.train(work, [client], 1)
    return work.params - block.values[0], float(block.weights[0])


def list_batches(federation, client, examples, epochs=2):
    """The batches of a client in round 1, as every engine draws them."""
    batches = Batches.of(federation.fresh_model(), LOCAL, federation)
    for step in batches.draw(len(examples), epochs, federation.seed, client, 1):
        yield examples.batch(step.positions), step.positions


def gradients_of(model, loss):
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, [*model.parameters()])])


def squares_by_hand(model, x, y):
    """Σ g ∘ g over examples, one backward pass each."""
    each = [gradients_of(model, cross_entropy(model(x[i : i + 1]), y[i : i + 1])) for i in range(len(y))]
    return torch.stack(each).square().sum(dim=0)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_squared_gradients_are_those_of_one_backward_pass_for_each_example(size):
    model, (x, y) = ragged().fresh_model(), tensors("any", size)
    found = torch.cat([part.reshape(-1) for part in square_gradients(model, cross_entropy, x, y)])
    torch.testing.assert_close(found, squares_by_hand(model, x, y), rtol=1e-12, atol=1e-15)


def test_a_layer_that_a_model_holds_twice_keeps_its_own_weights():
    shared = nn.Linear(12, 12).double()
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Flatten(), nn.Linear(144, 3).double())
    own, (x, y) = [*model.parameters()], tensors("any", 3)
    found = torch.cat([part.reshape(-1) for part in square_gradients(model, cross_entropy, x, y)])
    torch.testing.assert_close(found, squares_by_hand(model, x, y), rtol=1e-12, atol=1e-15)
    assert all(one is other for one, other in zip(own, model.parameters(), strict=True))


def test_the_fisher_of_some_examples_is_the_mean_of_their_squared_gradients():
    federation = ragged()
    model, examples = federation.fresh_model(), federation.clients["cat"]
    found = torch.cat([part.reshape(-1) for part in measure_fisher(model, cross_entropy, examples, CPU)])
    torch.testing.assert_close(found, squares_by_hand(model, *examples.all()) / 13, rtol=1e-12, atol=1e-15)


def test_preconditioned_training_by_hand():
    federation, task = ragged(), TASKS["precondition"]
    model = federation.fresh_model()
    w, m, q = flatten(model), 0.0, 0.0
    for s, ((x, y), _) in enumerate(list_batches(federation, "dog", federation.clients["dog"]), 1):
        unflatten(w, model)
        fisher = squares_by_hand(model, x, y) / len(y)
        m = 0.9 * m + 0.1 * gradients_of(model, cross_entropy(model(x), y))
        q = 0.999 * q + 0.001 * fisher**2
        w = w - 0.01 * (m / (1 - 0.9**s)) / ((q / (1 - 0.999**s)).sqrt() + 0.05)
    found, count = answer(feduhb.Loop(federation, LOCAL), task)
    torch.testing.assert_close(found, w, rtol=1e-10, atol=1e-12)
    assert count == 24


@pytest.mark.parametrize("value", [0.2, 3.0])
def test_with_a_constant_fisher_it_is_bias_corrected_moving_average_momentum(value):
    """q after s steps is F² (1 - β2^s), so √q̂ = F in every step, and w moves by -lr m̂ / (F + ε)."""
    p = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    descent = PreconditionedDescent(LOCAL, [p], Precondition(0.1, b1=0.8, b2=0.99, eps=0.5))
    w, m = p.detach().clone(), 0.0
    for s in range(1, 8):
        descent.fisher = [torch.full_like(p, value)]
        g = torch.tensor([math.sin(s), 3.0 * math.cos(2 * s)], dtype=torch.float64)
        descent.take_step((p * g).sum(), 1.0)
        m = 0.8 * m + 0.2 * g
        w = w - 0.1 * m / (1 - 0.8**s) / (value + 0.5)
        torch.testing.assert_close(p.detach(), w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "more", [{"l2": 0.1}, {"clip_norm": 0.01}, {"schedule": "linear"}, {"proximal": 5.0}]
)
def test_settings_of_local_training_that_change_preconditioned_steps(more):
    """They change g or scale lr: the loss with l2 by hand, and the others by what they do to the result."""
    federation, task = ragged(), TASKS["precondition"]
    plain, _ = answer(feduhb.Loop(federation, LOCAL), task)
    found, _ = answer(feduhb.Loop(federation, feduhb.Local(batch_size=6, lr=0.1, **more)), task)
    start = flatten(federation.fresh_model())
    assert not torch.equal(found, plain)
    if "l2" not in more:
        assert (found - start).norm() < (plain - start).norm()


def test_ascent_by_hand_and_inside_its_ball():
    """The projection binds in this case: without it, the client would end further away."""
    federation, task = with_leavers(), TASKS["ascend"]
    model, examples = federation.fresh_model(), federation.leaving["bee"]
    start = w = flatten(model)
    v = torch.zeros_like(w)
    for (x, y), _ in list_batches(federation, "bee", examples):
        unflatten(w, model)
        g = gradients_of(model, cross_entropy(model(x), y))
        v = 0.9 * v + g * min(1.0, 0.5 / (float(g.norm()) + 1e-6))  # as torch clips
        moved = w + 0.2 * v - start
        w = start + moved * min(1.0, 0.05 / float(moved.norm()))
    found, count = answer(feduhb.Loop(federation, LOCAL), task, "bee", leavers=True)
    torch.testing.assert_close(found, w, rtol=1e-6, atol=1e-8)
    assert float((found - start).norm()) == pytest.approx(0.05)
    free, _ = answer(feduhb.Loop(federation, LOCAL), Ascend(100.0, 0.2, clip_norm=0.5), "bee", leavers=True)
    assert float((free - start).norm()) > 0.1
    x, y = examples.all()
    losses = []
    for params in (start, found, free):
        unflatten(params, model)
        losses.append(float(cross_entropy(model(x), y).detach()))
    assert losses[0] < losses[1] < losses[2]
    assert count == 5


def test_in_a_ball_of_radius_0_nothing_moves():
    federation = with_leavers()
    found, _ = answer(feduhb.Loop(federation, LOCAL), Ascend(0.0, 1.0), "bee", leavers=True)
    assert torch.equal(found, flatten(federation.fresh_model()))


@pytest.mark.parametrize(("teachers", "penalty"), [(1, 0.0), (3, 0.0), (3, 2.0)])
def test_relabelling_by_hand(teachers, penalty):
    """SGD on cross-entropy with the teachers' mean prediction as label, and 2 λ F (w - w0) added to the gradient."""
    federation = with_leavers()
    model, targets = federation.fresh_model(), federation.leaving["dog"]
    drawn = [draw_model(federation.model, seed_for(federation.seed, "teacher", k)) for k in range(teachers)]
    x, _ = targets.all()
    labels = torch.stack([teacher(x).softmax(dim=1) for teacher in drawn]).mean(dim=0).detach()
    kept = federation.clients["dog"]
    assert (len(targets), len(kept)) == (2, 22)
    start = w = flatten(model)
    fisher = squares_by_hand(model, *kept.all()) / 22
    for (x, _), positions in list_batches(federation, "dog", targets):
        unflatten(w, model)
        loss = -(labels[positions] * model(x).log_softmax(dim=1)).sum(dim=1).mean()
        w = w - 0.1 * (gradients_of(model, loss) + 2 * penalty * fisher * (w - start))
    found, count = answer(feduhb.Loop(federation, LOCAL), Relabel(teachers, penalty), leavers=True)
    torch.testing.assert_close(found, w, rtol=1e-10, atol=1e-12)
    assert count == 2


def test_one_teacher_and_one_example_on_a_table():
    """A model that looks one row of two outputs up. p = softmax(w), q the teacher's: one step is w - lr (p - q)."""
    whole = feduhb.Federation(
        {
            "a": (torch.tensor([[0], [1]]), torch.tensor([0, 1])),
            "b": (torch.tensor([[0]]), torch.tensor([1])),
        },
        (torch.tensor([[0], [1]]), torch.tensor([0, 1])),
        lambda: Table(torch.randn(2, 2)),
        seed=4,
    )
    federation = whole.without("a:0").with_leaving(whole.forgotten("a:0"))
    w = flatten(federation.fresh_model()).view(2, 2)
    q = flatten(draw_model(whole.model, seed_for(4, "teacher", 0))).view(2, 2)[0].softmax(dim=0)
    wanted = w.clone()
    wanted[0] -= 0.1 * (w[0].softmax(dim=0) - q)
    found, _ = answer(feduhb.Loop(federation, LOCAL), Relabel(1, 0.0), "a", epochs=1, leavers=True)
    torch.testing.assert_close(found.view(2, 2), wanted)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_pool_does_each_task_with_the_bits_of_the_loop(name, threads):
    federation, leavers = with_leavers(), name != "precondition"
    clients = ["bee", "dog"] if name == "ascend" else ["dog"] if leavers else ["ant", "cat", "dog", "elk"]
    work = Work(flatten(federation.fresh_model()), 2, task=TASKS[name], leavers=leavers)
    slow = feduhb.Loop(federation, LOCAL).train(work, clients, 1)
    fast = feduhb.Pool(federation, LOCAL, threads=threads, block=2).train(work, clients, 1)
    assert torch.equal(*(torch.cat([block.values for block in blocks]) for blocks in (slow, fast)))


def test_leavers_train_on_what_they_asked_to_forget():
    federation = with_leavers()
    alone = ragged().replace(clients={"bee": ragged().clients["bee"]})
    for maker in (feduhb.Loop, feduhb.Pool):
        found, count = answer(maker(federation, LOCAL), None, "bee", leavers=True)
        assert torch.equal(found, answer(maker(alone, LOCAL), None, "bee")[0])
        assert count == 5


def test_a_pool_has_a_model_for_each_thread_if_more_clients_leave_than_remain():
    whole = ragged()
    federation = whole.without("bee,cat,dog,elk").with_leaving(whole.forgotten("bee,cat,dog,elk"))
    work = Work(flatten(federation.fresh_model()), 1, leavers=True)
    slow, fast = (
        torch.cat([block.values for block in engine.train(work, ["bee", "cat", "dog", "elk"], 0)])
        for engine in (feduhb.Loop(federation, LOCAL), feduhb.Pool(federation, LOCAL, threads=4))
    )
    torch.testing.assert_close(slow, fast, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [*TASKS, "leavers"])
def test_the_stacked_engine_does_each_task_as_the_loop_does(name):
    federation, task, leavers = with_leavers(), TASKS.get(name), name != "precondition"
    client = "dog" if name == "relabel" else "bee" if leavers else "cat"
    engines = feduhb.Loop(federation, LOCAL), feduhb.Stacked(federation, LOCAL, device="cpu")
    slow, fast = (answer(engine, task, client, leavers=leavers) for engine in engines)
    assert torch.equal(slow[0], fast[0])
    assert slow[1] == fast[1]


RECORDED = [{}, {"l2": 0.1, "clip_norm": 0.01}, {"schedule": "linear", "proximal": 5.0}]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
@pytest.mark.parametrize("more", RECORDED, ids=str)
def test_recorded_preconditioned_steps_are_those_of_the_loop(more, device):
    federation, local = ragged(), feduhb.Local(batch_size=6, lr=0.1, **more)
    engine = feduhb.Stacked(federation, local, device=device, block="recorded")
    work = Work(flatten(federation.fresh_model()), 2, task=TASKS["precondition"])
    everyone = [*federation.clients]
    (slow,) = feduhb.Loop(federation, local, block=9).train(work, everyone, 1)
    for _ in range(2):  # the second time, nothing is recorded and no state is left
        (fast,) = engine.train(work, everyone, 1)
        torch.testing.assert_close(fast.values, slow.values, rtol=1e-9, atol=1e-10)
        assert torch.equal(fast.weights, slow.weights)


class Unable:
    """An engine of an earlier version, which knows nothing of tasks and would train plainly."""

    about = {"name": "unable"}  # noqa: RUF012


def test_an_engine_that_cannot_do_a_task_is_refused_before_the_run():
    federation = ragged()
    with pytest.raises(ConfigError) as refused:
        make_engine(lambda *_: Unable(), federation, LOCAL, method=feduhb.RapidRetrain())  # pyright: ignore[reportArgumentType]
    assert str(refused.value) == (
        "rapidretrain asks clients to train by preconditioned steps, which the engine unable cannot do; use engine='pool' or 'loop'"
    )
    for name in ("auto", "loop", "pool", "stacked"):
        assert {*TASKS} == {task.name for task in get_tasks(make_engine(name, federation, LOCAL))}


def of_layers(*layers):
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(144, 3)).double()


@pytest.mark.parametrize(
    ("method", "layer", "local", "words"),
    [
        (feduhb.RapidRetrain(), nn.BatchNorm1d(144), {}, "normalises by statistics of batches; use GroupNorm"),
        (feduhb.FedAF(), nn.BatchNorm1d(144), {}, "normalises by statistics of batches; use GroupNorm"),
        (feduhb.RapidRetrain(), nn.Dropout(0.5), {}, "dropout and augmentation draw other numbers for an example"),
        (feduhb.RapidRetrain(), None, {"optimizer": "adam"}, "averages of their own, and the training has adam"),
        (feduhb.RapidRetrain(), None, {"momentum": 0.5}, "averages of their own, and the training has momentum 0.5"),
    ],
)  # fmt: skip
def test_what_does_not_combine_is_refused_before_the_run(method, layer, local, words):
    federation = ragged({"bee": 5, "cat": 13, "dog": 24}).replace(model=of_layers(*filter(None, [layer])))
    run = feduhb.train(federation, 1, epochs=1, batch_size=6, engine="loop", **local)
    with pytest.raises(ConfigError, match=words):
        feduhb.unlearn(run, "cat:0", method=method)


def test_ascent_combines_with_statistics_dropout_and_any_optimiser():
    model = of_layers(nn.BatchNorm1d(144), nn.Dropout(0.2))
    federation = ragged({"bee": 5, "cat": 13, "dog": 24}).replace(model=model)
    run = feduhb.train(federation, 1, epochs=1, batch_size=6, optimizer="adam", engine="loop")
    method = feduhb.PGA(epochs=1, after=1, ascent=1)
    loop, pool = (feduhb.unlearn(run, ["bee"], method=method, engine=engine) for engine in ("loop", "pool"))
    torch.testing.assert_close(loop.params, pool.params, rtol=0, atol=1e-12)


def test_labels_of_teachers_combine_with_dropout():
    federation = ragged({"bee": 5, "cat": 13, "dog": 24}).replace(model=of_layers(nn.Dropout(0.2)))
    run = feduhb.train(federation, 1, epochs=1, batch_size=6, engine="loop")
    method = feduhb.FedAF(epochs=1, after=1)
    loop, pool = (feduhb.unlearn(run, {"cat": [0, 4]}, method=method, engine=e) for e in ("loop", "pool"))
    assert not torch.equal(loop.params, run.params)
    torch.testing.assert_close(loop.params, pool.params, rtol=0, atol=1e-12)


def test_preconditioned_steps_combine_with_frozen_norms():
    model = of_layers(nn.BatchNorm1d(144))
    model[1].requires_grad_(False)
    federation = ragged({"bee": 5, "cat": 13, "dog": 24}).replace(model=model, start="given")
    run = feduhb.train(federation, 1, epochs=1, batch_size=6, engine="loop")
    loop, pool = (
        feduhb.unlearn(run, ["bee"], method="rapidretrain", rounds=2, engine=engine)
        for engine in ("loop", "pool")
    )
    torch.testing.assert_close(loop.params, pool.params, rtol=0, atol=1e-10)


def test_a_model_that_cannot_be_mapped_over_examples_is_refused_in_words():
    class Branching(nn.Linear):
        def forward(self, input):
            return super().forward(input.flatten(1)) * (1.0 if float(input.sum()) > 0 else 2.0)

    federation = ragged({"bee": 5, "cat": 13}).replace(model=Branching(144, 3).double())
    run = feduhb.train(federation, 1, epochs=1, batch_size=6, engine="loop")
    with pytest.raises(
        ConfigError, match=r"rapidretrain needs the gradient of every single example, and torch.func"
    ):
        feduhb.unlearn(run, ["bee"], method="rapidretrain")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Precondition(0.0), "lr is 0.0; give a positive number, such as 0.001"),
        (lambda: Precondition(0.1, b1=1.0), "b1 is 1.0; give at least 0 and below 1, such as 0.9"),
        (lambda: Precondition(0.1, eps=0), "eps is 0; give a positive number, such as 1e-08"),
        (lambda: Ascend(-1.0, 0.1), "radius is -1.0; give 0 or more"),
        (
            lambda: Ascend(1.0, 0.1, clip_norm=math.inf),
            "clip_norm is inf; give a positive number, such as 5.0",
        ),
        (lambda: Relabel(0, 1.0), "teachers is 0; give 1 or more"),
        (lambda: Relabel(1, math.nan), "penalty is nan; give 0 or more"),
    ],
)
def test_settings_that_cannot_be(make, words):
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value) == words


def test_a_task_needs_local_epochs():
    with pytest.raises(ValueError, match="the task ascend needs epochs of 1 or more, not 0"):
        Work(torch.zeros(1), 0, task=TASKS["ascend"])

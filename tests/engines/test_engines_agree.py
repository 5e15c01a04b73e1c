"""The fast engine equals the slow one, and each equals itself."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.core.flat import flatten
from feduhb.engines import make_engine
from feduhb.engines.precision import compute_alike, fix_precision
from feduhb.errors import ConfigError, DataError

SEQUENCE = [*SIZES]


def train_all(engine, federation, epochs=2, clients=tuple(SEQUENCE), round=3):
    start = flatten(federation.fresh_model())
    blocks = list(engine.train(feduhb.Work(start, epochs), clients, round))
    assert tuple(itertools.chain.from_iterable(block.clients for block in blocks)) == tuple(clients)
    return torch.cat([block.values for block in blocks]), torch.cat([block.weights for block in blocks])


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch_size=st.integers(1, 50),
    epochs=st.integers(0, 3),
    l2=st.sampled_from([0.0, 0.1]),
)
def test_the_pool_equals_the_loop_on_ragged_federations(sizes, batch_size, epochs, l2):
    clients = {f"c{i}": size for i, size in enumerate(sizes)}
    federation = ragged(clients)
    local = feduhb.Local(batch_size=batch_size, lr=0.1, l2=l2)
    slow, slow_weights = train_all(feduhb.Loop(federation, local), federation, epochs, tuple(clients))
    fast, fast_weights = train_all(
        feduhb.Pool(federation, local, threads=2), federation, epochs, tuple(clients)
    )
    assert torch.equal(slow_weights, fast_weights)
    assert slow_weights.tolist() == sizes
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epochs", [0, 2])
def test_the_pool_gives_the_same_bits_whatever_its_threads_and_blocks(dtype, epochs):
    federation = ragged(dtype=dtype)
    local = feduhb.Local(batch_size=8, lr=0.1)
    first, _ = train_all(feduhb.Pool(federation, local, threads=1, block=1), federation, epochs)
    for threads, block in [(1, 5), (2, 1), (2, 3), (4, 2), (7, 100)]:
        assert torch.equal(
            first,
            train_all(feduhb.Pool(federation, local, threads=threads, block=block), federation, epochs)[0],
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epochs", [0, 2])
def test_the_loop_gives_the_same_bits_whatever_torchs_threads_and_its_blocks(dtype, epochs):
    federation = ragged(dtype=dtype)
    local = feduhb.Local(batch_size=8, lr=0.1)
    first, _ = train_all(feduhb.Loop(federation, local), federation, epochs)
    before = torch.get_num_threads()
    try:
        for threads, block in [(1, 5), (2, 1), (4, 3)]:
            torch.set_num_threads(threads)
            assert torch.equal(
                first, train_all(feduhb.Loop(federation, local, block=block), federation, epochs)[0]
            )
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("maker", [feduhb.Loop, feduhb.Pool])
def test_the_papers_cnn_gives_the_same_bits_whatever_torchs_threads(maker):
    """In float32, where a product split over threads would differ at once."""
    federation = feduhb.load("mnist-5k", clients=2, per_client=70, held_out=0.0)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(train_all(maker(federation, feduhb.Local()), federation, 1, ("c00", "c01"))[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_a_parameter_that_the_model_does_not_use_stays_where_it_is(l2):
    """In training, whatever l2 is; a full-batch gradient holds l2 w of every parameter."""

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 2), nn.Linear(4, 1)

        def forward(self, x):
            return self.used(x)

    data = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2
    federation = feduhb.Federation({"a": data}, data, Idle())
    local, start = feduhb.Local(batch_size=4, lr=0.1, l2=l2), flatten(federation.fresh_model())
    for epochs, expected in ((0, l2 * start[-5:]), (2, torch.zeros(5))):
        for maker in (feduhb.Loop, feduhb.Pool, feduhb.Stacked):
            found, _ = train_all(maker(federation, local), federation, epochs, ("a",))
            assert torch.equal(found[0, -5:], expected)
            assert found[0, :-5].all()


@pytest.mark.parametrize("maker", [feduhb.Loop, feduhb.Pool])
def test_a_client_draws_the_same_whichever_clients_take_part_with_it(maker):
    federation = ragged()
    engine = maker(federation, feduhb.Local(batch_size=4, lr=0.1))
    everyone, _ = train_all(engine, federation)
    for row, client in enumerate(SEQUENCE):
        assert torch.equal(everyone[row], train_all(engine, federation, clients=(client,))[0][0])


@pytest.mark.parametrize("maker", [feduhb.Loop, feduhb.Pool])
def test_rounds_and_clients_shuffle_differently(maker):
    federation = ragged(dog=tensors("cat", 13), cat=tensors("cat", 13))
    engine = maker(federation, feduhb.Local(batch_size=4, lr=0.1))
    cat, dog = (train_all(engine, federation, clients=(client,))[0] for client in ("cat", "dog"))
    later = train_all(engine, federation, clients=("cat",), round=4)[0]
    assert not torch.equal(cat, dog)
    assert not torch.equal(cat, later)


@pytest.mark.parametrize("maker", [feduhb.Loop, feduhb.Pool])
def test_gradient_mode_answers_with_the_full_batch_gradient(maker, monkeypatch):
    """Chunked or not, with l2/2 ‖w‖² over every parameter."""
    monkeypatch.setattr("feduhb.engines.batches.CHUNK", 5)
    federation = ragged()
    found, _ = train_all(maker(federation, feduhb.Local(l2=0.3)), federation, epochs=0, clients=("dog",))
    model = federation.fresh_model()
    x, y = federation.clients["dog"].all()
    penalty = sum(p.square().sum() for p in model.parameters()) * 0.3 / 2
    (nn.functional.cross_entropy(model(x), y) + penalty).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("maker", [feduhb.Loop, feduhb.Pool])
def test_one_step_of_one_batch_is_lr_times_the_gradient(maker):
    federation = ragged()
    engine = maker(federation, feduhb.Local(batch_size=100, lr=0.25))
    step, _ = train_all(engine, federation, epochs=1, clients=("dog",))
    gradient, _ = train_all(engine, federation, epochs=0, clients=("dog",))
    torch.testing.assert_close(step, 0.25 * gradient, rtol=0, atol=1e-12)


def test_an_empty_client_is_refused_by_name():
    with pytest.raises(DataError, match="client fox holds no examples; leave it out"):
        ragged(fox=(torch.zeros(0, 1, 12, 12, dtype=torch.float64), torch.zeros(0, dtype=torch.long)))


def test_the_pool_never_holds_more_than_a_few_answers():
    """Ten thousand clients must cost the memory of one block: work is handed out as answers are taken."""
    federation = ragged({f"c{i}": 1 for i in range(40)})
    pool = feduhb.Pool(federation, feduhb.Local(), threads=2, block=1)
    trained: list[str] = []
    train_one = pool._answer
    pool._answer = lambda work, client, round: (trained.append(client), train_one(work, client, round))[1]
    stream = pool.train(feduhb.Work(flatten(federation.fresh_model()), 1), tuple(federation.clients), 0)
    next(stream)
    assert len(trained) <= 4
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(trained) <= 4


@pytest.mark.parametrize("maker", [feduhb.Loop, feduhb.Pool])
def test_training_leaves_the_model_the_start_and_torchs_random_state_alone(maker):
    federation = ragged()
    start = flatten(federation.fresh_model())
    kept, state = start.clone(), torch.get_rng_state()
    list(maker(federation, feduhb.Local(lr=0.1)).train(feduhb.Work(start, 1), tuple(SEQUENCE), 0))
    assert torch.equal(start, kept)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(flatten(federation.fresh_model()), kept)


def test_engines_say_what_they_are():
    federation = ragged(dtype=torch.float32)
    about = feduhb.Pool(federation, feduhb.Local(batch_size=9, lr=0.2, l2=0.1), threads=3, block=2).about
    assert about == {
        "name": "pool", "device": "cpu", "precision": "float32", "threads": 3, "block": 2,
        "batch_size": 9, "lr": 0.2, "loss": "cross_entropy", "l2": 0.1,
    }  # fmt: skip
    assert feduhb.Loop(federation).about["threads"] == 1


def test_an_unknown_engine_lists_the_known_ones():
    with pytest.raises(
        ConfigError,
        match="there is no engine 'warp'; choose one of auto, loop, pool, stacked, stacked:tf32, stacked:bf16",
    ):
        make_engine("warp", ragged(), feduhb.Local())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_loop_on_a_gpu_matches_the_one_on_the_cpu():
    federation = ragged()
    local = feduhb.Local(batch_size=8, lr=0.1)
    slow, _ = train_all(feduhb.Loop(federation, local), federation)
    fast, _ = train_all(feduhb.Loop(federation, local, device="cuda"), federation)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


BACKENDS: Any = torch.backends  # whose newer names torch's stubs lack


def set_by_old_name():
    torch.backends.cuda.matmul.allow_tf32 = True


def set_by_new_name():
    BACKENDS.cuda.matmul.fp32_precision = "tf32"


def set_for_everything():
    BACKENDS.fp32_precision = "tf32"


def set_convolutions_apart():
    BACKENDS.cudnn.conv.fp32_precision = "ieee"


WAYS = (set_by_old_name, set_by_new_name, set_for_everything, set_convolutions_apart)
has_new_names = hasattr(BACKENDS, "fp32_precision")  # since torch 2.9


@pytest.fixture
def restored():
    """Restore how a GPU of this process rounds, which can be set and read without a GPU, too."""
    yield
    if has_new_names:
        BACKENDS.fp32_precision = BACKENDS.cudnn.fp32_precision = "none"
    BACKENDS.cudnn.allow_tf32 = True
    BACKENDS.cuda.matmul.allow_tf32 = False


def read_rounding():
    """Return what products, convolutions and recurrent layers do; before torch 2.9, of products alone."""
    products, cudnn = BACKENDS.cuda.matmul, BACKENDS.cudnn
    if not has_new_names:
        return [products.allow_tf32]
    return [owner.fp32_precision == "tf32" for owner in (products, cudnn.conv, cudnn.rnn)]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("change", WAYS if has_new_names else WAYS[:1])
@pytest.mark.parametrize("fix", [compute_alike, fix_precision])
def test_a_gpu_computes_in_one_way_whatever_the_process_has_set(change, fix):
    change()
    before = read_rounding()
    for rough in (False, True):
        with fix(torch.device("cuda"), tf32=rough):
            assert {*read_rounding()} == {rough}
            assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == rough
            assert torch.backends.cudnn.deterministic
            assert torch.backends.cudnn.enabled
            is_fast = fix is fix_precision
            assert torch.backends.cuda.mem_efficient_sdp_enabled() == is_fast
            assert torch.backends.cuda.flash_sdp_enabled() == is_fast
        assert read_rounding() == before
        assert torch.backends.cuda.mem_efficient_sdp_enabled()


def test_a_gpu_can_do_without_cudnn():
    with compute_alike(torch.device("cuda"), cudnn=False):
        assert not torch.backends.cudnn.enabled
    assert torch.backends.cudnn.enabled


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_attention_on_a_gpu_gives_the_same_bits_twice():
    """One long row, which the faster kernels of attention split among threads that add up in any order."""
    draw = torch.Generator().manual_seed(0)
    clients = {"ant": (torch.randn(2, 2048, 16, generator=draw), torch.tensor([0, 1]))}
    layers = (
        nn.TransformerEncoderLayer(16, 1, 16, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(2**15, 2),
    )
    federation = feduhb.Federation(clients, clients["ant"], nn.Sequential(*layers))
    local = feduhb.Local(batch_size=1)
    for maker in (feduhb.Loop, feduhb.Stacked):
        one, two = (
            train_all(maker(federation, local, device="cuda"), federation, 3, ("ant",))[0] for _ in range(2)
        )
        assert torch.equal(one, two)

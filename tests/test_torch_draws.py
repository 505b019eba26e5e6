"""Torch draws: in a diverted thread every way to draw from torch's CPU generator takes the thread's own, with the
values and errors that the process's generator of the same seed gives; nothing else is changed."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from drawing import states_kept
from torch import nn
from torch.overrides import TorchFunctionMode

from torchstage import rng, torch_draws

pytest_plugins = "outside"

SEED = 7
PATIENCE_SECONDS = 20.0

x = torch.full((4, 4), 0.5)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # newer releases of torch say that it is deprecated; it is used all the same

    @torch.jit.script
    def scripted(t):
        return torch.rand_like(t) + F.dropout(t, 0.5, True) + torch.randn(4, 4) + torch.randint(0, 5, [4, 4])

    traced = torch.jit.trace(lambda t: t + torch.rand(4, 4), (x,), check_trace=False)


class Subclass(torch.Tensor):
    pass


class Noted(TorchFunctionMode):
    """A mode of the user's own."""

    def __init__(self):
        self.functions = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.functions.append(function.__name__)
        return function(*args, **(kwargs or {}))


def backward(make):
    """The gradient of something random."""
    leaf = torch.full((4, 4), 0.5, requires_grad=True)
    make(leaf).sum().backward()
    return leaf.grad


def checkpointed(leaf):
    return torch.utils.checkpoint.checkpoint(F.dropout, leaf, use_reentrant=False) ** 2


def on_meta():
    with torch.device("meta"):
        torch.rand(3), torch.ones(3).uniform_()
    torch.rand(3, device="meta"), torch.randperm(3, device="meta"), torch.normal(0.0, 1.0, (3,), device="meta")
    torch.bernoulli(x.to("meta")), torch.multinomial(x.to("meta"), 2)
    return torch.rand(3)


def in_inference_mode():
    with torch.inference_mode():
        return torch.rand(3), F.dropout(x)


def in_autocast():
    with torch.autocast("cpu"):
        return F.dropout(x @ x), torch.randn(3)


def every_output():
    like = torch.empty(4, 4)
    whole = torch.empty(4, 4, dtype=torch.int64)
    return [
        torch.rand(4, 4, out=like).clone(),
        torch.randn(4, 4, out=like).clone(),
        torch.randint(9, (4, 4), out=like).clone(),
        torch.randperm(4, out=whole[0].clone()),
        torch.bernoulli(x, out=like).clone(),
        torch.multinomial(x, 4, out=whole).clone(),
        torch.normal(x, x, out=like).clone(),
        torch.normal(x, 1.0, out=like).clone(),
        torch.normal(1.0, x, out=like).clone(),
        torch.normal(0.0, 1.0, (4, 4), out=like).clone(),
    ]


WAYS = {
    "factories": lambda: [
        torch.rand(3),
        torch.randn(3),
        torch.randint(9, (3,)),
        torch.randint(3, 9, (3,)),
        torch.randperm(9),
    ],
    "dtypes": lambda: [
        torch.rand(3, dtype=torch.half),
        torch.randn(17, dtype=torch.bfloat16),
        torch.randn(3, dtype=torch.cfloat),
    ],
    "like": lambda: [torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9), torch.randint_like(x, 3, 9)],
    "filled in place": lambda: [
        torch.empty(5).uniform_(),
        torch.empty(5).uniform_(1, 2),
        torch.empty(5).normal_(1, 2),
        torch.empty(5).cauchy_(),
        torch.empty(5).log_normal_(),
        torch.empty(5).exponential_(),
        torch.empty(5).geometric_(0.3),
        torch.empty(5).bernoulli_(),
        torch.empty(5).bernoulli_(0.3),
        torch.empty(5).bernoulli_(torch.full((5,), 0.3)),
        torch.empty(5).random_(),
        torch.empty(5).random_(9),
        torch.empty(5).random_(3, 9),
        torch.empty(5, dtype=torch.int64).random_(3, None),
    ],
    "from parameters": lambda: [
        torch.bernoulli(x),
        torch.bernoulli(x, 0.3),
        torch.multinomial(x, 2),
        torch.multinomial(x, 9, replacement=True),
        torch.normal(x, x),
        torch.normal(x),
        torch.normal(0.0, x),
        torch.normal(0.0, 1.0, (3,)),
        torch.poisson(x),
        torch.binomial(x * 10, x),
        torch._standard_gamma(x),
        torch._sample_dirichlet(x),
    ],
    "outputs": every_output,
    "dropout": lambda: [
        F.dropout(x),
        F.dropout1d(x),
        F.dropout2d(x[None, None]),
        F.dropout3d(x[None, None, None]),
        torch.dropout(x, 0.5, True),
    ],
    "dropout in place": lambda: [F.dropout(x.clone(), inplace=True), torch.dropout_(x.clone(), 0.5, True)],
    "alpha dropout": lambda: [F.alpha_dropout(x, training=True), F.feature_alpha_dropout(x, training=True)],
    "native dropout": lambda: torch.native_dropout(x, 0.5, True),
    "rrelu": lambda: [F.rrelu(-x, training=True), nn.RReLU()(-x), torch.rrelu_((-x).clone(), training=True)],
    "gumbel_softmax": lambda: [F.gumbel_softmax(x), F.gumbel_softmax(x, hard=True)],
    "attention": lambda: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
    "fractional pooling": lambda: F.fractional_max_pool2d(torch.rand(1, 1, 8, 8), 2, output_size=2),
    "modules": lambda: [
        nn.Linear(4, 4)(x),
        nn.LSTM(4, 4, 2, dropout=0.5)(x[None])[0],
        nn.TransformerEncoderLayer(4, 2)(x[None]),
    ],
    "initialisers": lambda: [
        nn.init.kaiming_uniform_(torch.empty(4, 4)),
        nn.init.xavier_normal_(torch.empty(4, 4)),
        nn.init.trunc_normal_(torch.empty(4, 4)),
        nn.init.orthogonal_(torch.empty(4, 4)),
        nn.init.sparse_(torch.empty(4, 4), 0.5),
    ],
    "scripted": lambda: [scripted(x) for _ in range(4)],  # it is optimised in its second or third call
    "traced": lambda: [traced(x) for _ in range(4)],
    "low rank": lambda: torch.pca_lowrank(torch.rand(6, 5), 2),
    "quasirandom": lambda: torch.quasirandom.SobolEngine(3, scramble=True).draw(4),
    "random_split": lambda: torch.tensor(torch.utils.data.random_split(range(9), [4, 5])[0].indices),
    "sampler": lambda: torch.tensor(list(torch.utils.data.RandomSampler(range(9)))),
    "default generator by name": lambda: [
        torch.rand(3, generator=torch.default_generator),
        torch.randperm(9, generator=torch.default_generator),
        torch.multinomial(x, 2, generator=torch.default_generator),
        torch.poisson(x, torch.default_generator),
        torch.empty(3).normal_(generator=torch.default_generator),
    ],
    "a generator of the user's": lambda: [
        torch.rand(3, generator=torch.Generator().manual_seed(4)),
        torch.poisson(x, torch.Generator().manual_seed(4)),
    ],
    "vmap, different": lambda: torch.vmap(lambda t: F.dropout(t) + torch.rand(4), randomness="different")(x),
    "vmap, same": lambda: torch.vmap(lambda t: t + torch.rand(4), randomness="same")(x),
    "grad": lambda: torch.func.grad(lambda t: (t * torch.rand(4, 4)).sum())(x),
    "jvp": lambda: torch.func.jvp(lambda t: t * torch.rand(4, 4), (x,), (x,))[1],
    "backward of dropout": lambda: backward(F.dropout),
    "backward of rrelu": lambda: backward(lambda leaf: F.rrelu(-leaf, training=True)),
    "backward of a checkpoint": lambda: backward(checkpointed),
    "inference mode": in_inference_mode,
    "autocast": in_autocast,
    "other devices": on_meta,
    "subclass": lambda: [torch.ones(3).as_subclass(Subclass).uniform_(), torch.rand_like(x.as_subclass(Subclass))],
    "sparse": lambda: torch.eye(4).to_sparse().coalesce().values().uniform_(),
}
ERRORS = {
    "bounds": lambda: torch.empty(1).uniform_(2, 1),
    "dtype": lambda: torch.ones(3, dtype=torch.int64).uniform_(),
    "dtype of a factory": lambda: torch.rand(3, dtype=torch.int64),
    "probabilities": lambda: torch.multinomial(torch.tensor([-1.0, 2.0]), 1),
    "probability": lambda: torch.bernoulli(torch.tensor([2.0])),
    "size": lambda: torch.randperm(-1),
    "deviation": lambda: torch.normal(0.0, -1.0, (3,)),
    "leaf": lambda: torch.ones(3, requires_grad=True).uniform_(),
    "no generator": lambda: torch.rand(3, generator="x"),
    "argument": lambda: torch.empty(3).uniform_(high=3),
    "vmap": lambda: torch.vmap(lambda t: t + torch.rand(4))(x),
}


def tensors(made):
    return list(made) if isinstance(made, list | tuple) else [made]


def by_the_process(make):
    """What it makes with the process's generator, which is restored."""
    before = torch.get_rng_state()
    torch.manual_seed(SEED)
    try:
        return tensors(make())
    finally:
        torch.set_rng_state(before)


@pytest.fixture
def worker():
    with states_kept(), rng.drawing_from(rng.Scope.of_worker(SEED, 0, [1])) as scope:
        yield scope


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # torch's own jvp uses it
@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_a_way_to_draw(make, worker):
    made = tensors(make())
    rng.leave_thread()
    expected = by_the_process(make)
    assert len(made) == len(expected)
    for one, other in zip(made, expected, strict=True):
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
def test_an_error_is_torchs_own(make, worker):
    with pytest.raises(Exception) as inside:  # noqa: PT011  # whichever it is
        make()
    rng.leave_thread()
    with pytest.raises(Exception) as outside:  # noqa: PT011
        make()
    assert type(inside.value) is type(outside.value)
    assert str(inside.value) == str(outside.value)


def test_a_mode_of_the_users_sees_each_call_once(worker):
    with Noted() as mode:
        torch.empty(3).uniform_()
        torch.rand(3)
    assert mode.functions == ["empty", "uniform_", "rand"]


def test_every_operator_that_draws_is_known():
    """One that draws takes a generator and has a kernel of its own for a device; the others call these."""

    def has_own_kernel(name):
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        return torch._C._dispatch_has_kernel(name) and any(has_kernel(name, key) for key in ("CPU", "CUDA"))

    drawing = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
        and any("Generator" in str(argument.type) for argument in schema.arguments)
        and has_own_kernel(f"{schema.name}.{schema.overload_name}".rstrip("."))
    }
    assert drawing <= set(torch_draws.RANDOM_OPERATORS)


def test_a_call_that_names_a_generator_advances_that_one(worker):
    own = torch.Generator().manual_seed(4)
    before = worker.torch.get_state()
    torch.rand(3, generator=own), torch.poisson(x, own), torch.empty(3).normal_(generator=own)
    assert torch.equal(worker.torch.get_state(), before)


def test_a_thread_that_is_not_diverted_runs_torchs_own_kernels(monkeypatch):
    """It does not even look for a scope."""
    rng.install()
    num_looked = []
    before = torch.get_rng_state()
    monkeypatch.setattr(type(rng._this_thread), "scope", property(lambda self: num_looked.append(1)))
    thread = threading.Thread(target=lambda: [torch.empty(3).uniform_(), torch.randperm(3), F.dropout(x)])
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert num_looked == []
    torch.get_rng_state()
    assert num_looked == [1]  # a function of torch.random does
    torch.default_generator.set_state(before)


def test_threads_of_torchs_own_draw_from_the_process(worker):
    """Documented: a thread that user code starts is nobody's loader thread."""
    before = torch.default_generator.get_state()
    state = worker.torch.get_state()
    thread = threading.Thread(target=torch.rand, args=(3,))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert torch.equal(worker.torch.get_state(), state)
    assert not torch.equal(torch.default_generator.get_state(), before)
    torch.default_generator.set_state(before)


def test_a_draw_on_another_device_does_not_even_seed_the_threads_own_generator(worker):
    class Unasked:
        def __index__(self):
            raise AssertionError("it was seeded")

    worker.begin(rng.Seeds(0, 0), "sample", Unasked())
    torch.empty(3, device="meta").uniform_(), torch.multinomial(x.to("meta"), 2), torch.randperm(3, device="meta")


@pytest.mark.cuda
def test_draws_on_a_gpu_are_left_alone(worker):
    state, own = torch.cuda.get_rng_state(), worker.torch.get_state()
    made = torch.rand(3, device="cuda"), torch.ones(3, device="cuda").uniform_(), torch.randperm(9, device="cuda")
    torch.normal(0.0, 1.0, (3,), device="cuda")
    torch.manual_seed(5), torch.seed()
    torch.cuda.set_rng_state(state)
    again = torch.rand(3, device="cuda"), torch.ones(3, device="cuda").uniform_(), torch.randperm(9, device="cuda")
    assert all(map(torch.equal, made, again))
    worker.torch.set_state(own)
    torch.cuda.set_rng_state(state)


@pytest.mark.cuda
def test_the_draws_of_a_gpu_in_dropout_are_left_alone(worker):
    on_gpu = x.cuda()
    state, own = torch.cuda.get_rng_state(), worker.torch.get_state()
    made = F.dropout(on_gpu), torch.native_dropout(on_gpu, 0.5, True)[0], torch.multinomial(on_gpu, 2)
    torch.cuda.set_rng_state(state)
    again = F.dropout(on_gpu), torch.native_dropout(on_gpu, 0.5, True)[0], torch.multinomial(on_gpu, 2)
    assert all(map(torch.equal, made, again))
    assert torch.equal(worker.torch.get_state(), own)
    torch.cuda.set_rng_state(state)

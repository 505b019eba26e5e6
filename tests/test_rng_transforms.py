"""Random transforms and distributions: in any number of threads, in any order, what one thread makes with the process's
own generators seeded by hand for each sample. The process's generators stay as they are."""

import ast
import inspect
import sys
from functools import partial

import pytest
import torch
import torch.distributions as dist
import torchvision.transforms as v1
from drawing import by_hand, in_threads, same, states_kept
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

NUM_SAMPLES = 12
NUM_THREADS = (1, 2, 4, 8)

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning"),  # VonMises uses it
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),  # v2.JPEG
    pytest.mark.filterwarnings("ignore:Singular sample detected:UserWarning"),  # Wishart draws again
]


def check(make, can_vary=True):
    """The one statement of this file."""
    expected = [by_hand(make, index) for index in range(NUM_SAMPLES)]
    for num_threads in NUM_THREADS:
        with states_kept():
            samples = in_threads(make, NUM_SAMPLES, num_threads)
        different = [index for index in range(NUM_SAMPLES) if not same(samples[index], expected[index])]
        assert not different, f"{num_threads} threads"
    if can_vary:
        assert not all(same(sample, expected[0]) for sample in expected), "it draws nothing: the test shows nothing"


def pixels():
    """All transforms change it: its channels differ, and so do its corners."""
    columns, rows = torch.meshgrid(torch.arange(24), torch.arange(32), indexing="ij")
    return torch.stack([columns * 9, rows * 7, columns * rows * 37 % 251]).to(torch.uint8)


def image():
    return Image.fromarray(pixels().permute(1, 2, 0).numpy())


# torchvision, v1 --------------------------------------------------------------------------------------------

flip_or_not = v1.RandomHorizontalFlip()
V1 = {
    "AugMix": partial(v1.AugMix),
    "AutoAugment": partial(v1.AutoAugment),
    "ColorJitter": partial(v1.ColorJitter, 0.5, 0.5, 0.5, 0.2),
    "ElasticTransform": partial(v1.ElasticTransform, 20.0),
    "GaussianBlur": partial(v1.GaussianBlur, 3),
    "RandAugment": partial(v1.RandAugment),
    "RandomAdjustSharpness": partial(v1.RandomAdjustSharpness, 2),
    "RandomAffine": partial(v1.RandomAffine, 30, (0.1, 0.2), (0.5, 1.5), 10),
    "RandomApply": partial(v1.RandomApply, [v1.RandomRotation(90)]),
    "RandomAutocontrast": partial(v1.RandomAutocontrast),
    "RandomChoice": partial(v1.RandomChoice, [v1.RandomRotation(90), v1.RandomCrop(16), flip_or_not]),
    "RandomCrop": partial(v1.RandomCrop, 16),
    "RandomEqualize": partial(v1.RandomEqualize),
    "RandomErasing": partial(v1.RandomErasing, value="random"),
    "RandomGrayscale": partial(v1.RandomGrayscale, 0.5),
    "RandomHorizontalFlip": partial(v1.RandomHorizontalFlip),
    "RandomInvert": partial(v1.RandomInvert),
    "RandomOrder": partial(v1.RandomOrder, [v1.RandomRotation(90), v1.RandomCrop(16), v1.Pad(2)]),
    "RandomPerspective": partial(v1.RandomPerspective),
    "RandomPosterize": partial(v1.RandomPosterize, 2),
    "RandomResizedCrop": partial(v1.RandomResizedCrop, 16),
    "RandomRotation": partial(v1.RandomRotation, 90),
    "RandomSolarize": partial(v1.RandomSolarize, 100),
    "RandomVerticalFlip": partial(v1.RandomVerticalFlip),
    "TrivialAugmentWide": partial(v1.TrivialAugmentWide),
}
TENSORS_ONLY = {"RandomErasing"}


@pytest.mark.parametrize("name", V1)
def test_a_transform_of_torchvision(name):
    transform = V1[name]()
    make_input = v1.ToTensor() if name in TENSORS_ONLY else (lambda picture: picture)
    check(lambda index: transform(make_input(image())))


# torchvision, v2 --------------------------------------------------------------------------------------------

V2 = {
    name: partial(getattr(v2, name), *each.args, **each.keywords)
    for name, each in V1.items()
    if name not in {"RandomApply", "RandomChoice", "RandomOrder"}
} | {
    "CutMix": partial(v2.CutMix, num_classes=4),
    "GaussianNoise": partial(v2.GaussianNoise),
    "JPEG": partial(v2.JPEG, (1, 100)),
    "MixUp": partial(v2.MixUp, num_classes=4),
    "RandomApply": partial(v2.RandomApply, [v2.RandomRotation(90)]),
    "RandomChannelPermutation": partial(v2.RandomChannelPermutation),
    "RandomChoice": partial(v2.RandomChoice, [v2.RandomRotation(90), v2.RandomCrop(16), v2.RandomInvert()]),
    "RandomIoUCrop": partial(v2.RandomIoUCrop),
    "RandomOrder": partial(v2.RandomOrder, [v2.RandomRotation(90), v2.RandomCrop(16), v2.Pad(2)]),
    "RandomPhotometricDistort": partial(v2.RandomPhotometricDistort),
    "RandomResize": partial(v2.RandomResize, 8, 30),
    "RandomShortestSize": partial(v2.RandomShortestSize, [8, 12, 16, 20, 24]),
    "RandomZoomOut": partial(v2.RandomZoomOut),
    "ScaleJitter": partial(v2.ScaleJitter, (16, 16)),
}


NOT_RANDOM = {"FiveCrop", "Transform", "UniformTemporalSubsample"}  # they draw in the examples of their docstrings


def v2_input(name):
    if name in {"CutMix", "MixUp"}:  # they take batches
        return torch.arange(4 * 3 * 8 * 8).reshape(4, 3, 8, 8).float(), torch.arange(4)
    if name == "RandomIoUCrop":
        boxes = torch.tensor([[2, 2, 20, 20], [10, 5, 30, 22]])
        return {
            "image": tv_tensors.Image(pixels()),
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(24, 32)),
        }
    if name == "GaussianNoise":
        return tv_tensors.Image(pixels().float() / 255)
    return tv_tensors.Image(pixels())


@pytest.mark.parametrize("name", V2)
def test_a_transform_of_torchvision_v2(name):
    transform = V2[name]()
    check(lambda index: transform(v2_input(name)))


@pytest.mark.parametrize("name", ["ColorJitter", "RandomResizedCrop", "RandomAffine", "RandAugment"])
def test_a_transform_of_torchvision_v2_on_an_image_of_pillow(name):
    transform = V2[name]()
    check(lambda index: transform(image()))


def source_of_classes(module):
    """By name. (inspect.getsource would parse the module again for each class, which takes a second.)"""
    text = inspect.getsource(module)
    return {
        node.name: ast.get_source_segment(text, node) for node in ast.parse(text).body if type(node) is ast.ClassDef
    }


@pytest.mark.parametrize(("module", "table"), [(v1, V1), (v2, V2)], ids=["v1", "v2"])
def test_every_random_transform_of_torchvision_is_tried(module, table):
    """A transform is random if its code names what draws."""
    draws = ("torch.rand", "uniform_", "random.", "np.random", "normal_", "multinomial", "_dist")
    classes = {name: each for name in dir(module) if inspect.isclass(each := getattr(module, name))}
    places = {each.__module__ for each in classes.values() if each.__module__.startswith("torchvision.transforms")}
    sources = {place: source_of_classes(sys.modules[place]) for place in places}
    random = {
        name
        for name, each in classes.items()
        if each.__module__ in places and any(word in sources[each.__module__][each.__name__] for word in draws)
    }
    assert random
    assert random - NOT_RANDOM <= set(table)


# torch.distributions ----------------------------------------------------------------------------------------

half, two, eye = torch.full((3,), 0.5), torch.full((3,), 2.0), torch.eye(3)
DISTRIBUTIONS = {
    "Bernoulli": partial(dist.Bernoulli, half),
    "Beta": partial(dist.Beta, half, two),
    "Binomial": partial(dist.Binomial, 20, half),
    "Categorical": partial(dist.Categorical, half),
    "Cauchy": partial(dist.Cauchy, half, two),
    "Chi2": partial(dist.Chi2, two),
    "ContinuousBernoulli": partial(dist.ContinuousBernoulli, half),
    "Dirichlet": partial(dist.Dirichlet, two),
    "Exponential": partial(dist.Exponential, two),
    "FisherSnedecor": partial(dist.FisherSnedecor, two, two),
    "Gamma": partial(dist.Gamma, half, two),
    "GeneralizedPareto": lambda: dist.GeneralizedPareto(half, two, half),
    "Geometric": partial(dist.Geometric, half),
    "Gumbel": partial(dist.Gumbel, half, two),
    "HalfCauchy": partial(dist.HalfCauchy, two),
    "HalfNormal": partial(dist.HalfNormal, two),
    "Independent": lambda: dist.Independent(dist.Normal(half, two), 1),
    "InverseGamma": partial(dist.InverseGamma, two, two),
    "Kumaraswamy": partial(dist.Kumaraswamy, two, two),
    "LKJCholesky": partial(dist.LKJCholesky, 3, 0.5),
    "Laplace": partial(dist.Laplace, half, two),
    "LogNormal": partial(dist.LogNormal, half, half),
    "LogisticNormal": partial(dist.LogisticNormal, half, two),
    "LowRankMultivariateNormal": partial(dist.LowRankMultivariateNormal, half, torch.ones(3, 1), two),
    "MixtureSameFamily": lambda: dist.MixtureSameFamily(dist.Categorical(half), dist.Normal(half, two)),
    "Multinomial": lambda: dist.Multinomial(10, half),
    "MultivariateNormal": partial(dist.MultivariateNormal, half, eye),
    "NegativeBinomial": partial(dist.NegativeBinomial, 5, half),
    "Normal": partial(dist.Normal, half, two),
    "OneHotCategorical": partial(dist.OneHotCategorical, half),
    "OneHotCategoricalStraightThrough": partial(dist.OneHotCategoricalStraightThrough, half),
    "Pareto": partial(dist.Pareto, two, two),
    "Poisson": partial(dist.Poisson, two),
    "RelaxedBernoulli": partial(dist.RelaxedBernoulli, half, half),
    "RelaxedOneHotCategorical": partial(dist.RelaxedOneHotCategorical, half, half),
    "StudentT": partial(dist.StudentT, two),
    "TransformedDistribution": lambda: dist.TransformedDistribution(dist.Normal(half, two), [dist.ExpTransform()]),
    "Uniform": partial(dist.Uniform, half, two),
    "VonMises": partial(dist.VonMises, half, two),
    "Weibull": partial(dist.Weibull, two, two),
    "Wishart": partial(dist.Wishart, torch.tensor(5.0), eye),
}
ABSTRACT = {"Distribution", "ExponentialFamily"}


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if hasattr(dist, name)])
def test_a_distribution(name):
    distribution = DISTRIBUTIONS[name]()
    check(lambda index: [distribution.sample((4,)), distribution.sample()])


def test_every_distribution_is_tried():
    classes = {name: each for name in dist.__all__ if inspect.isclass(each := getattr(dist, name))}
    assert {n for n, each in classes.items() if issubclass(each, dist.Distribution)} - ABSTRACT <= set(DISTRIBUTIONS)


@pytest.mark.parametrize("name", ["Gamma", "Dirichlet", "Normal", "StudentT"])
def test_a_distribution_that_is_differentiated(name):
    def make(index):
        parameter = torch.full((3,), 2.0, requires_grad=True)
        arguments = (parameter,) if name in {"Dirichlet", "StudentT"} else (parameter, parameter)
        getattr(dist, name)(*arguments).rsample().square().sum().backward()
        return parameter.grad

    check(make)

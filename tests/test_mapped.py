"""Models whose layers know no axis for the models: mapped, they train as each does alone."""

import pytest
import torch

from topocaps.capsules import PartWhole
from topocaps.data.moved import MovedDigits
from topocaps.training import Sgd, Training
from topocaps.training.descent import Plain
from topocaps.training.stack import HostRandomness, Stack, by_architecture

SEEDS, BATCH = (0, 1, 5), 4
TRAINING = Training(optimiser=Sgd(lr=1e-3), batch=BATCH, clip=10.0)


def model(seed, **changes):
    torch.manual_seed(seed)
    small = {"sizes": (3, 4), "template": 5, "width": 8, "depth": 1}
    return PartWhole((1, 28, 28), **(small | changes))


def steps(members, seeds, count):
    """The terms of every step, of the stack of these."""
    images = torch.randint(256, (20, 28, 28), generator=torch.Generator().manual_seed(0))
    digits = MovedDigits(images.to(torch.uint8), torch.zeros(20, dtype=torch.uint8))
    stack, numbers = Stack(members, 1), HostRandomness(seeds, torch.device("cpu"))
    descent = Plain(stack, TRAINING)
    descent.set_rate(TRAINING.optimiser.lr)
    found = []
    for _ in range(count):
        uniform = numbers.uniform(BATCH, digits.numbers)
        noise = [numbers.normal(BATCH, 1, *shape) for shape in stack.model.drawn]
        found.append(descent.step(digits, uniform, noise)[0])
    stack.write_back()
    return torch.stack(found, 1)


@pytest.mark.parametrize("changes", [{}, {"poses_are": "normal"}, {"sizes": (2, 3, 4), "turns": 2}])
def test_members_train_as_when_alone(changes):
    together = [model(seed, **changes) for seed in SEEDS]
    alone = [model(seed, **changes) for seed in SEEDS]
    found = steps(together, SEEDS, 20)
    for place, (one, seed) in enumerate(zip(alone, SEEDS, strict=True)):
        torch.testing.assert_close(found[place], steps([one], [seed], 20)[0], rtol=1e-4, atol=1e-4)
        for name, value in one.state_dict().items():
            mine = together[place].state_dict()[name]
            torch.testing.assert_close(mine, value, rtol=1e-4, atol=1e-4, msg=name)


def test_what_can_be_one_stack():
    models = [model(0), model(1), model(2, prior=0.3), model(3, scale=0.3)]
    assert by_architecture(models) == [[0, 1, 3], [2]]  # where parts start is a tensor of each
    assert by_architecture(models, mapping=False) == [[0], [1], [2], [3]]

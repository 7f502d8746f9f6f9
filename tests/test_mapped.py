"""Models that `torch.func.vmap` maps train as each model does alone."""

from dataclasses import replace

import pytest
import torch
from test_training import StopAt, assert_same, weights

import topocaps as tc
from topocaps.capsules import PartWhole
from topocaps.data.moved import MovedDigits
from topocaps.training import Sgd, Training
from topocaps.training.loop import train
from topocaps.training.stack import HostRandomness, Stack, by_architecture
from topocaps.training.store import RunFolder
from topocaps.training.updates.autograd import AutogradUpdate

SEEDS, BATCH = (0, 1, 5), 4
TRAINING = Training(optimiser=Sgd(lr=1e-3), batch=BATCH, clip=10.0)


def model(seed, **changes):
    torch.manual_seed(seed)
    small = {"sizes": (3, 4), "template": 5, "width": 8, "depth": 1}
    return PartWhole((1, 28, 28), **(small | changes))


def digits_of(count=20):
    images = torch.randint(256, (count, 28, 28), generator=torch.Generator().manual_seed(0))
    return MovedDigits(images.to(torch.uint8), torch.zeros(count, dtype=torch.uint8))


def steps(members, seeds, count):
    """The terms of every step, of the stack of these."""
    digits = digits_of()
    stack, numbers = Stack(members, 1), HostRandomness(seeds, torch.device("cpu"))
    update = AutogradUpdate(stack, TRAINING)
    update.set_lr(TRAINING.optimiser.lr)
    found = []
    shapes = [(BATCH, 1, *shape) for shape in stack.model.noise_shapes]
    for step in torch.arange(1, count + 1):
        uniform, noise = numbers.draw(step, (BATCH, digits.numbers), shapes)
        found.append(update.step(digits, uniform, noise)[0])
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


def test_which_models_can_be_one_stack():
    class Own(PartWhole):
        """What it inherits may not hold for it."""

    models = [model(0), model(1), model(2, prior=0.3), model(3, scale=0.3), model(4, slower=0.1)]
    assert by_architecture(models) == [[0, 1, 3], [2], [4]]  # where parts start is a tensor of each
    assert by_architecture(models, mapping=False) == [[n] for n in range(5)]
    assert by_architecture([Own((1, 28, 28)), Own((1, 28, 28))]) == [[0], [1]]


def test_a_stopped_mapped_stack_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "topocaps.training.engine.by_architecture",
        lambda models, trainings, mapping: by_architecture(models, trainings),
    )
    whole, part, again = ([model(seed) for seed in (0, 1)] for _ in range(3))
    training = replace(TRAINING, epochs=2)
    digits, folders = digits_of(), [RunFolder(tmp_path / str(n)) for n in range(2)]
    train(whole, digits, training, seeds=(0, 1))
    with pytest.raises(tc.Interrupted):
        train(part, digits, training, seeds=(0, 1), folders=folders, watcher=StopAt(7))
    train(again, digits, training, seeds=(0, 1), folders=folders)
    for one, other in zip(whole, again, strict=True):
        assert_same(weights(one), weights(other))

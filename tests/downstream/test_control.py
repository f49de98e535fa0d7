"""Control labels: a function of the first word, distributed as the task's labels."""

import torch

from raysweep.downstream.control import ControlTask


def test_labels_belong_to_the_first_word():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 500, (4000, 5), generator=generator)
    labels = (torch.rand(4000, generator=generator) < 0.2).long() * 2
    control = ControlTask(words=500, classes=3, seed=1, task="A")
    found = control.labels(ids, labels)
    other = ids.clone()
    other[:, 1:] = 0
    # The distribution is that of the first labels; later ones do not change it.
    assert torch.equal(control.labels(other, torch.ones(4000, dtype=torch.long)), found)
    assert set(found.tolist()) == {0, 2}
    share = (found == 2).double().mean().item()
    assert abs(share - 0.2) < 4 * (0.2 * 0.8 / 500) ** 0.5


def test_labels_are_keyed_by_seed_and_task():
    ids = torch.arange(200)[:, None]
    labels = torch.arange(200) % 4
    made = [
        ControlTask(words=200, classes=4, seed=seed, task=task).labels(ids, labels)
        for seed, task in ((0, "A"), (0, "A"), (1, "A"), (0, "B"))
    ]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert not torch.equal(made[0], made[3])

"""The student is pulled towards the target's distribution, and rests where it is reached."""

from __future__ import annotations

import torch
from torch.nn.functional import one_hot

from tandem.distill.learner import ARGMAX_WEIGHT, distillation_loss, divergence
from tandem.distill.schedule import WARM_UP_SHARE, Stopwatch, learning_rate, seeded


def logits(seed: int) -> torch.Tensor:
    return torch.randn(7, 11, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def test_the_divergence_rests_where_the_student_equals_the_teacher() -> None:
    teacher = logits(0)
    student = (teacher + 5).requires_grad_()  # the same distribution
    loss = divergence(student, teacher)
    loss.backward()
    assert student.grad is not None
    assert abs(float(loss.detach())) < 1e-12
    assert student.grad.abs().max() < 1e-12


def test_gradients_are_differences_of_distributions() -> None:
    student, teacher = logits(1).requires_grad_(), logits(2)
    distillation_loss(student, teacher).backward()
    p, q = teacher.softmax(-1), student.detach().softmax(-1)
    best = one_hot(teacher.argmax(-1), 11)
    torch.testing.assert_close(student.grad, ((q - p) + ARGMAX_WEIGHT * (q - best)) / len(p))


def test_the_divergence_is_the_sum_of_p_log_p_over_q() -> None:
    p, q = logits(1).softmax(-1), logits(2).softmax(-1)
    torch.testing.assert_close(divergence(logits(2), logits(1)), (p * (p / q).log()).sum() / len(p))


def test_the_rate_rises_to_its_peak_and_falls_to_nothing() -> None:
    rates = [learning_rate(2.0, progress / 100) for progress in range(101)]
    top = rates.index(max(rates))
    assert rates[0] == 0.0
    assert abs(rates[-1]) < 1e-12
    assert top == round(WARM_UP_SHARE * 100)
    assert 1.9 < rates[top] <= 2.0
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_only_time_between_laps_counts() -> None:
    times = iter([100.0, 101.0, 103.5])
    watch = Stopwatch(lambda: next(times), spent_s=40.0)
    assert [watch.lap(), watch.lap()] == [41.0, 43.5]


def test_every_key_has_random_numbers_of_its_own() -> None:
    """Family: a seed whose upper half the generator ignores, so that two runs write the same text."""
    keys = [(0, 0), (0, 1), (1, 0), (1 << 32, 0), (0, 1 << 32), (7,), (7, 0)]
    drawn = [tuple(torch.rand(4, generator=seeded(*key)).tolist()) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert tuple(torch.rand(4, generator=seeded(*keys[3])).tolist()) == drawn[3]

"""The arithmetic of a training course: which phase a step is in, and its learning rate."""

import pytest

from training.recipe import Course, Phase, Recipe, Shape

COURSE = Course(
    Shape(128, 2, 384), (Phase(100, 1e-2), Phase(200, 4e-3, falling=50), Phase(40, 1e-3))
)


def test_a_step_is_in_the_phase_that_its_number_says() -> None:
    assert COURSE.steps == 340
    assert COURSE.at(0) == (0, 0)
    assert COURSE.at(99) == (0, 99)
    assert COURSE.at(100) == (1, 0)
    assert COURSE.at(339) == (2, 39)
    with pytest.raises(IndexError):
        COURSE.at(340)


def test_the_rate_rises_stays_and_falls_to_zero() -> None:
    phase = COURSE.phases[1]
    rates = [phase.rate_at(step, warmup=20) for step in range(phase.steps)]
    assert rates[:20] == sorted(rates[:20])
    assert rates[0] == pytest.approx(phase.rate / 20)
    assert set(rates[19:150]) == {phase.rate}
    assert rates[150:] == sorted(rates[150:], reverse=True)
    assert rates[-1] == pytest.approx(phase.rate / 50)


def test_without_a_fall_the_rate_stays_to_the_end() -> None:
    assert COURSE.phases[0].rate_at(99, warmup=20) == COURSE.phases[0].rate


def test_a_trial_has_every_phase_in_a_few_steps() -> None:
    short, whole = Recipe().scaled(0.01), Recipe()
    for name in ("teacher", "student"):
        pairs = zip(short.course(name).phases, whole.course(name).phases, strict=True)
        for less, more in pairs:
            assert 1 <= less.steps <= 0.02 * more.steps + 1
            assert less.falling <= less.steps
            assert (less.rate, less.thorough) == (more.rate, more.thorough)


def test_only_the_student_learns_from_a_teacher_and_last() -> None:
    recipe = Recipe()
    assert all(phase.soft_share == 0 for phase in recipe.teacher.phases)
    assert recipe.student.phases[-1].soft_share > 0
    for name in ("teacher", "student"):
        last = recipe.course(name).phases[-1]
        assert 0 < last.falling <= last.steps

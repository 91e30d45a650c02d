"""What `benchmarks/worker_scaling.py` makes of what it found."""

from worker_scaling import Cores, Found, compared, limit_of


def found(workers: int, sessions: int | None, cores: Cores) -> Found:
    return Found(workers, sessions, 300, None if sessions is None else 0.95, cores, None)


def test_the_ratio_has_its_n_and_what_limits_it() -> None:
    lines = compared(
        [found(1, 10, Cores(0.95, 0.95, 0.2)), found(2, 17, Cores(1.6, 0.8, 0.35))], all_cores=2
    )
    assert lines == [
        "1 worker: limited by the core of the busiest process (0.95; agent 0.95 and callers 0.20 "
        "of 2 cores)",
        "2 workers hold 1.70 times the sessions of 1 (n = 1 search each)",
        "2 workers: limited by the machine's cores, which the callers share (agent 1.60 and "
        "callers 0.35 of 2 cores)",
    ]


def test_without_a_certificate_there_is_no_ratio() -> None:
    lines = compared([found(1, None, Cores()), found(2, 17, Cores())], all_cores=2)
    assert len(lines) == 2
    assert "times" not in "".join(lines)


def test_what_is_free_limits_nothing() -> None:
    assert limit_of(Cores(0.5, 0.3, 0.1), 2).startswith("neither")

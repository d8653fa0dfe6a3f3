"""Schedules of settings that change during a run."""


def linear(start: float, end: float, progress: float) -> float:
    """Interpolates from start to end for progress in [0, 1]; end beyond."""
    return start + (end - start) * min(1.0, progress)


def has_passed(period: int, before: int, now: int) -> bool:
    """Whether a multiple of the period lies in (before, now]; never for a period of 0."""
    return period > 0 and now // period > before // period

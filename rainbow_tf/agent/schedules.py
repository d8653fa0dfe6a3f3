"""Settings that change over a run."""


def linear(start: float, end: float, progress: float) -> float:
    """From start to end as progress goes from 0 to 1, and end from there on."""
    return start + (end - start) * min(1.0, progress)


def has_passed(period: int, before: int, now: int) -> bool:
    """Whether a multiple of the period lies in (before, now]; never for a period of 0."""
    return period > 0 and now // period > before // period

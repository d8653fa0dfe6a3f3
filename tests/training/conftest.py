import pytest
from stub_run import patch


@pytest.fixture
def stub_runs(monkeypatch):
    """Lets `stub_run.train_stub` train stub runs."""
    patch(monkeypatch)

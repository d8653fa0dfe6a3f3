def pytest_configure(config):
    # pytest-xdist registers the marker itself; without it the tests run one after another.
    config.addinivalue_line("markers", "xdist_group(name): run by the same pytest-xdist worker")

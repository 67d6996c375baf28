"""Hypothesis profiles of every test: `ci`, the default, is bounded and derandomised; `--hypothesis-profile=nightly`.

No test sees what `autotune` has found on this machine: builds would take it.
"""

import os
import tempfile

from hypothesis import settings

settings.register_profile("ci", max_examples=40, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)


def pytest_configure(config):
    data = tempfile.TemporaryDirectory(prefix="stepforge-data-")
    config.add_cleanup(data.cleanup)
    os.environ["XDG_DATA_HOME"] = data.name
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("ci")

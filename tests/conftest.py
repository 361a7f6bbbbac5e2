"""What holds for every test: where shared data lies, and that a machine which is busy for a moment is no failure."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# torch asks the name server for the name of 127.0.0.1 when a store connects; where that server drops packets it would
# cost five seconds each time.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# Other tests may have all the cores while an example is drawn or runs.
settings.register_profile("kit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kit")
# IPython warns, and a warning is an error here, when another environment than this Python's is activated.
os.environ.pop("VIRTUAL_ENV", None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of traces and logs beside the repository; skips where it is absent."""
    folder = Path(os.environ.get("KIT_SHARED", Path(__file__).parents[2] / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set KIT_SHARED to its parent")
    return folder

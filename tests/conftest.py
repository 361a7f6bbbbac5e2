"""Where shared data lies for tests that can use it."""

import os
from pathlib import Path

import pytest

# torch asks the name server for the name of 127.0.0.1 when a store connects; where that server drops packets it would
# cost five seconds each time.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# IPython warns, and a warning is an error here, when another environment than this Python's is activated.
os.environ.pop("VIRTUAL_ENV", None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of traces and logs beside the repository; skips where it is absent."""
    folder = Path(os.environ.get("KIT_SHARED", Path(__file__).parents[2] / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set KIT_SHARED to its parent")
    return folder

"""Where shared data lies for tests that can use it."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of traces and logs beside the repository; skips where it is absent."""
    folder = Path(os.environ.get("KIT_SHARED", Path(__file__).parents[2] / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}; set KIT_SHARED to its parent")
    return folder

"""What a learning-rate scheduler looks for on an optimizer. Seen on 2.11 to 2.13."""

from torch.optim import Optimizer


def note_step(optimizer: Optimizer) -> None:
    """Let schedulers know that a step was taken: they warn when `optimizer.step` itself was never called."""
    optimizer._opt_called = True  # type: ignore[attr-defined]

"""The TuneReport record: what each micro-batch and accumulation cost at one fixed global batch.

Plain data, so that a report made on a GPU node can be read, compared and drawn on a laptop.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How one rank splits its share of the global batch.

    A rank runs `accumulation` micro-batches of `micro_batch` samples and, when the share does not
    divide, one more of `remainder` samples before the optimizer updates.
    """

    micro_batch: int
    accumulation: int
    remainder: int = 0

    def __post_init__(self) -> None:
        if self.micro_batch < 1 or self.accumulation < 1 or not 0 <= self.remainder < self.micro_batch:
            raise ValueError(
                f"micro_batch {self.micro_batch}, accumulation {self.accumulation}, remainder {self.remainder}; "
                "expected micro_batch >= 1, accumulation >= 1 and 0 <= remainder < micro_batch"
            )

    @property
    def samples(self) -> int:
        """Samples of one rank in one optimizer step."""
        return self.micro_batch * self.accumulation + self.remainder


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One setting, run on all ranks.

    `seconds_per_step`: median over steps of the slowest rank's time. `peak_bytes`: of the fullest
    rank; `peak_method` says in words whether it was measured or predicted. `failure` is "" when the
    setting ran; else the reason, and the numbers are 0.
    """

    setting: Setting
    seconds_per_step: float
    samples_per_second: float
    peak_bytes: int
    peak_method: str
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReport:
    """Measurements of settings that all train with the same global batch, so the same result."""

    global_batch: int
    world_size: int
    measurements: tuple[Measurement, ...]

    def __repr__(self) -> str:
        if self.best is None:
            why = f": {self.measurements[0].failure}" if self.measurements else ""
            return f"TuneReport(global batch {self.global_batch}: none of {len(self.measurements)} settings ran{why})"
        s = self.best.setting
        return (
            f"TuneReport(global batch {self.global_batch} on {self.world_size} ranks: best of "
            f"{len(self.measurements)} is micro-batch {s.micro_batch} x accumulation {s.accumulation}, "
            f"{self.best.samples_per_second:.4g} samples/s)"
        )

    @property
    def best(self) -> Measurement | None:
        """The setting with the most samples a second; None when none ran."""
        ran = [m for m in self.measurements if not m.failure]
        return max(ran, key=lambda m: m.samples_per_second, default=None)

"""What a machine can do, for estimates; every figure says where it is from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Rates of one device and its links, for estimates only.

    `flops_per_second`: matrix products in the format computed in; `attention_flops_per_second`: fused attention,
    None where it is as fast; `ceiling_flops_per_second`: of one large product alone, against which a kernel's share is
    told, None where the first is that. `bytes_per_second`: device memory. `kernel_seconds`: what each kernel takes
    beside, to start and to end.
    `link_bytes_per_second`: a device's bus bandwidth to the others of its node in one direction;
    `network_bytes_per_second`: to other nodes. `latency_seconds`: of one collective, however small.
    `sources`: where each figure is from.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    link_bytes_per_second: float
    network_bytes_per_second: float
    ranks_per_node: int
    latency_seconds: float
    sources: str
    attention_flops_per_second: float | None = None
    ceiling_flops_per_second: float | None = None
    kernel_seconds: float = 0.0

    def __post_init__(self) -> None:
        links = (self.link_bytes_per_second, self.network_bytes_per_second)
        attention = self.attention_flops_per_second or self.flops_per_second
        ceiling = self.ceiling_flops_per_second or self.flops_per_second
        rates = (self.flops_per_second, attention, ceiling, self.bytes_per_second, *links)
        times = self.latency_seconds, self.kernel_seconds
        if not all(rate > 0 for rate in rates) or self.ranks_per_node < 1 or min(times) < 0:
            raise ValueError(
                f"hardware {self.name!r}: rates {rates}, times {times}, {self.ranks_per_node} ranks a node; expected "
                "rates above 0, no negative time, at least one rank a node"
            )


PROFILES = {
    "h200": Hardware(
        name="h200",
        flops_per_second=700e12,
        attention_flops_per_second=490e12,
        ceiling_flops_per_second=788e12,
        bytes_per_second=4.3e12,
        link_bytes_per_second=293e9,
        network_bytes_per_second=50e9,
        ranks_per_node=8,
        latency_seconds=45e-6,
        kernel_seconds=3e-6,
        sources=(
            "bf16 products (706 TFLOP/s; a lone one of 8192 x 8192 reaches 788), attention (490 TFLOP/s) and the "
            "shortest kernels (2 to 3 us) of a GPT-163M's step in one CUDA graph; device copy (4.3 TB/s), all-reduce "
            "of 256 MB over NVLink on 2 GPUs (293 GB/s) and of 16 KB (45 us): measured on H200. Network 400 Gbit/s a "
            "GPU: vendor's, not measured"
        ),
    ),
    "h100": Hardware(
        name="h100",
        flops_per_second=989e12,
        bytes_per_second=3.35e12,
        link_bytes_per_second=450e9,
        network_bytes_per_second=50e9,
        ranks_per_node=8,
        latency_seconds=45e-6,
        kernel_seconds=3e-6,
        sources=(
            "H100 SXM datasheet: 989 TFLOP/s bf16 dense, 3.35 TB/s, NVLink 900 GB/s both ways; network 400 Gbit/s a "
            "GPU. Not measured, and no machine reaches its datasheet; latencies as measured on H200"
        ),
    ),
}


def hardware_of(choice: "str | Hardware") -> Hardware:
    """The profile of a name, or the given one. Raises `ValueError` that lists the names."""
    if isinstance(choice, Hardware):
        return choice
    if choice in PROFILES:
        return PROFILES[choice]
    raise ValueError(
        f"hardware {choice!r} is not known; expected one of {', '.join(map(repr, PROFILES))} or a kit.Hardware(...) "
        "with your own figures"
    )

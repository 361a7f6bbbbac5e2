"""What a kernel computes, told from its name: matmul, attention, normalisation, elementwise, ...

Names are a library's own and no standard; the patterns were checked on kernels of H200, V100, MI250 and MI210 traces.
A name that fits nothing is "other", never the nearest guess.
"""

import re

from kit.timeline.kinds import is_communication_kernel
from kit.timeline.record import Category

_KINDS = (
    ("attention", r"flash|fmha|attention|attn|sdpa|compute_dot_do_o|convert_dq_to"),
    ("convolution", r"conv(?!ert)|winograd|fft2d|nchwToNhwc|nhwcToNchw|implicit_|scudnn|[wd]grad|OffsetsKernel"),
    ("matmul", r"gemm|gemv|nvjet|cutlass|cublas|splitK|Cijk_|\bdot_kernel|matmul|_mm_|wgmma|xmma"),
    ("multi-tensor", r"multi_tensor_apply|fused_?adam|foreach"),
    ("normalisation", r"layer_?norm|rms_?norm|batch_?norm|bn_fw|bn_bw|group_?norm|GammaBeta"),
    ("softmax and loss", r"softmax|nll_loss|cross_entropy"),
    ("embedding and index", r"embedding|index|gather|scatter(?!v)|radix|sort|cub::"),
    ("fused", r"\Atriton_|\Atorch_compile"),
    ("reduction", r"reduce|Reduce"),
    ("elementwise", r"elementwise|vectorized|CatArray|fill|copy|dropout|arange"),
)  # fmt: skip
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)
_TRITON = re.compile(r"\Atriton_")
# A word is looked at from its beginning only: else the time grows with the square of a name's length.
_FUNCTOR = re.compile(r"CUDAFunctor\w*|(?<!\w)\w+_kernel_cuda|(?<!\w)\w+Functor|launch_\w+")


def kernel_kind(name: str) -> str:
    """The kind of a kernel of this name, "other" when the name tells nothing."""
    if is_communication_kernel(name):
        return "communication"
    if _TRITON.match(name):
        template = re.match(r"triton_(?:tem|mm|bmm|flex)", name)
        return "fused" if template is None else "matmul" if "flex" not in name else "attention"
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "other")


def event_kind(name: str, category: int) -> str:
    """The kind of any device event: that of a kernel, "copy" or "set"."""
    if category == Category.MEMCPY:
        return "copy"
    return "set" if category == Category.MEMSET else kernel_kind(name)


def short_name(name: str) -> str:
    """A kernel's name without return type, arguments and template parameters: what a person calls it."""
    text = re.sub(r"\(anonymous namespace\)::", "", name)
    text = re.sub(r"\A(?:void|static|inline) ", "", text)
    functor = _FUNCTOR.search(text)
    bare = re.split(r"[<(]", text, maxsplit=1)[0].split("::")[-1]
    said = functor[0] if functor and functor[0] not in bare and "elementwise" in bare else ""
    return f"{bare} [{said}]" if said else bare or name

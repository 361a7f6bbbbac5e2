"""Say which module a shape error inside a tensor-parallel region is from, and what such a module must do."""

import traceback

from torch import nn

from kit.step.provenance import ROOT, is_user_file


def part_text(error: BaseException, model: nn.Module) -> str:
    """The error with the user's line and module: modules see parts of the features, or of the sequence."""
    names = {id(module): name or ROOT for name, module in model.named_modules()}
    where = "an unknown line"
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_user_file(frame.f_code.co_filename):
            summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
            owner = names.get(id(frame.f_locals.get("self")))
            where = f"{summary.filename}:{line}: {summary.line}{f' (module {owner})' if owner else ''}"
    return (
        f"{where}: {(str(error).splitlines() or [type(error).__name__])[0]}. Under tensor parallelism a module sees "
        "its part of the heads and features (and of the sequence): write -1 for the number of heads, such as "
        "x.view(batch, length, -1, head_dim), flatten(2) instead of the width, and read the length after a colwise one"
    )

"""Which dim of which parameter a tensor-parallel plan splits, and how a part is cut and joined.

Resolved against a model once: patterns become modules, styles become splits, and what does not fit is
refused here with the module's name.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kit.step.mesh import Axis
from kit.step.strategy import TP, Strategy, StrategyError
from kit.step.tensor.styles import Style


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A parameter cut over `axis` along `dim`; with `packs` each of that many equal blocks of the dim is cut."""

    axis: Axis
    dim: int
    packs: int = 1

    @property
    def form(self) -> tuple[int, int]:
        """What stays the same when the axis is made again."""
        return self.dim, self.packs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A plan resolved against a model.

    `modules`: path and style of each module that takes part. `splits`: by parameter name, tied weights under their
    first. `summed`: whole parameters whose gradients are sums over the sequence and must be summed over the axis.
    `packs`: by path, the projections that a module's output holds.
    """

    axis: Axis | None = None
    modules: tuple[tuple[str, Style], ...] = ()
    splits: Mapping[str, Split] = field(default_factory=dict)
    summed: frozenset[str] = frozenset()
    packs: Mapping[str, int] = field(default_factory=dict)


def layout_of(model: nn.Module, strategy: Strategy, axis: Axis | None) -> Layout:
    """The layout that a strategy gives a model; an empty one when it is not tensor parallel.

    Raises `StrategyError` that names the pattern, module or parameter that does not fit.
    """
    if not isinstance(strategy, TP) or axis is None:
        return Layout()
    styles = _matched(model, strategy.styles)
    for path, module in model.named_modules():
        if path in styles and styles[path].kind in ("colwise", "rowwise"):
            _require_kind(path, module, styles[path])
    packs = {path: count for path, (_, count) in _by_pattern(model, strategy.packed).items()}
    wanted = _wanted(model, styles, packs, axis)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    splits: dict[str, Split] = {}
    summed: set[str] = set()
    for identity, uses in wanted.items():
        name = names[identity]
        first_path, first_split, first_sum = uses[0]
        for path, split, is_summed in uses[1:]:
            if (split, is_summed) != (first_split, first_sum):
                raise StrategyError(
                    f"{name} is one parameter of {first_path} and {path} (tied), which {_text(first_split)} and "
                    f"{_text(split)}; give both a style that splits the same dim, such as 'rowwise_rep' for the "
                    "embedding and 'colwise_rep' for the head"
                )
        if first_split is not None:
            splits[name] = first_split
        if first_sum:
            summed.add(name)
    _require_fit(model, splits)
    return Layout(axis=axis, modules=tuple(styles.items()), splits=splits, summed=frozenset(summed), packs=packs)


def part_of(whole: torch.Tensor, split: Split) -> torch.Tensor:
    """This rank's part of a whole parameter, a view where it can be one."""
    blocks = torch.unflatten(whole, split.dim, (split.packs, split.axis.size, -1))
    return blocks.select(split.dim + 1, split.axis.index).flatten(split.dim, split.dim + 1)


def joined(parts: Sequence[torch.Tensor], split: Split) -> torch.Tensor:
    """The whole parameter of the parts of all ranks, in rank order."""
    blocks = [torch.unflatten(part, split.dim, (split.packs, -1)) for part in parts]
    return torch.cat(blocks, split.dim + 1).flatten(split.dim, split.dim + 1)


Use = tuple[str, Split | None, bool]


def _wanted(
    model: nn.Module, styles: Mapping[str, Style], packs: Mapping[str, int], axis: Axis
) -> dict[int, list[Use]]:
    """For each parameter (by identity) what each module that owns it wants of it."""
    wanted: dict[int, list[Use]] = {}
    in_sequence = tuple(path for path, style in styles.items() if style.kind == "sequence")
    for path, module in model.named_modules():
        style = styles.get(path)
        inside = any(path == outer or path.startswith(outer + ".") for outer in in_sequence)
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            split = _split(path, module, key, style, packs.get(path, 1), axis)
            is_summed = split is None and (inside or (style is not None and style.sums_sequence))
            wanted.setdefault(id(parameter), []).append((path, split, is_summed))
    return wanted


def _split(path: str, module: nn.Module, key: str, style: Style | None, packs: int, axis: Axis) -> Split | None:
    if style is None or style.kind not in ("colwise", "rowwise"):
        if packs != 1:
            raise StrategyError(f"packed names {path}, which is not colwise in the plan; give it the style 'colwise'")
        return None
    embedding = isinstance(module, nn.Embedding)
    if style.kind == "rowwise" and packs != 1:
        raise StrategyError(f"packed names {path}, which is rowwise; packed projections are split by 'colwise' only")
    if style.kind == "rowwise" and not embedding and key == "bias":
        return None  # added once, after the sum over ranks
    dim = int((style.kind == "rowwise") is not embedding)
    return Split(axis=axis, dim=0 if key == "bias" else dim, packs=packs)


def _require_kind(path: str, module: nn.Module, style: Style) -> None:
    own_forward = type(module).forward not in (nn.Linear.forward, nn.Embedding.forward)
    if not isinstance(module, nn.Linear | nn.Embedding) or (own_forward and style.kind == "rowwise"):
        raise StrategyError(
            f"{path} is a {type(module).__name__} and has the style {style.kind}; expected an nn.Linear or nn.Embedding"
            f"{' with the forward of torch' if own_forward else ''}: name the ones inside it"
        )
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq or module.sparse):
        raise StrategyError(
            f"{path} has max_norm, scale_grad_by_freq or sparse, which do not work on a part; unset them"
        )


def _require_fit(model: nn.Module, splits: Mapping[str, Split]) -> None:
    for name, parameter in model.named_parameters():
        split = splits.get(name)
        if split is None:
            continue
        size, pieces = parameter.shape[split.dim], split.packs * split.axis.size
        if size % pieces:
            packed = f" x {split.packs} packed" if split.packs > 1 else ""
            raise StrategyError(
                f"{name} is {list(parameter.shape)}: dim {split.dim} of {size} does not divide over {split.axis.size} "
                f"ranks{packed}; make it a multiple of {pieces} (such as {size + pieces - size % pieces}), or leave "
                "its module out of the plan"
            )
        if not parameter.requires_grad:
            raise StrategyError(
                f"{name} is frozen (requires_grad=False) and its module is split; a frozen parameter stays whole: "
                "leave its module out of the plan, or train it"
            )


def _text(split: Split | None) -> str:
    return "keep it whole" if split is None else f"split dim {split.dim}"


def _matched(model: nn.Module, plan: Mapping[str, Style]) -> dict[str, Style]:
    found: dict[str, Style] = {}
    for path, (pattern, style) in _by_pattern(model, plan).items():
        found[path] = style
        if style.kind == "convert" and not (style.takes or style.gives or style.named):
            raise StrategyError(f"the style of {pattern!r} changes neither inputs nor outputs; give it layouts")
    return found


def _by_pattern(model: nn.Module, plan: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Module path to the pattern that matches it and what the pattern stands for."""
    found: dict[str, tuple[str, Any]] = {}
    paths = [path for path, _ in model.named_modules()]
    for pattern, meaning in plan.items():
        matching = [path for path in paths if _matches(path, pattern)]
        if not matching:
            listed = ", ".join(path for path in paths[:12] if path)
            raise StrategyError(
                f"pattern {pattern!r} of the plan matches no module; a star is one name between dots. The model has "
                f"{listed}{', ...' if len(paths) > 12 else ''}"
            )
        for path in matching:
            if path in found:
                raise StrategyError(
                    f"{path} is matched by {found[path][0]!r} and {pattern!r}; expected one pattern for each module"
                )
            found[path] = (pattern, meaning)
    return found


def _matches(path: str, pattern: str) -> bool:
    """As torch's parallelize_module: name by name between dots."""
    names, patterns = path.split("."), pattern.split(".")
    pairs: Iterator[tuple[str, str]] = zip(names, patterns, strict=False)
    return len(names) == len(patterns) and all(fnmatch.fnmatchcase(name, p) for name, p in pairs)

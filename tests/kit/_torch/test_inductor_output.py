"""Inductor's text of a real graph, when it compiles and when it comes from its cache."""

import json

import pytest
import torch

from kit._torch.executors import inductor, texts_of


class Product(torch.nn.Module):
    def forward(self, x, w):
        return torch.mm(x, w)  # a library's kernel: nothing for a C++ compiler to do


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # Inductor's import
def test_the_text_is_there_after_the_first_call_and_from_the_cache_too():
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    module = torch.fx.symbolic_trace(Product())
    found = []
    with torch.no_grad():
        for _ in range(2):
            torch.compiler.reset()
            run = inductor(module)
            assert texts_of(run) == ()
            assert torch.equal(run(x, w), x @ w)
            run(x, w)
            [text] = texts_of(run)
            found.append(text)
    assert found[0] == found[1]
    assert found[0].key.startswith("f") and "extern_kernels.mm(" in found[0].code
    [(kernel, [stack])] = json.loads(found[0].stacks_of).items()
    assert kernel.startswith("extern_kernels.mm:") and "mm = torch.mm(x, w)" in stack
    assert texts_of(module) == ()

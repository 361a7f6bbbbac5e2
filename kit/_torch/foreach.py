"""One operator over a list of tensors: documented by torch, yet named as private. Seen on 2.11 to 2.13."""

import torch

add = torch._foreach_add
add_ = torch._foreach_add_
addcmul_ = torch._foreach_addcmul_
div = torch._foreach_div
lerp_ = torch._foreach_lerp_
maximum_ = torch._foreach_maximum_
mul = torch._foreach_mul
mul_ = torch._foreach_mul_
neg = torch._foreach_neg
sqrt = torch._foreach_sqrt
sub_ = torch._foreach_sub_

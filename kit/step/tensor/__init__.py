"""Tensor parallel: modules whose parameters are split over ranks, and what they send to each other.

The collectives are explicit functional operators in autograd functions around the module's own forward
(Megatron-LM, arXiv 1909.08053, and its sequence parallelism, arXiv 2205.05198), so the step stays one flat graph.
"""

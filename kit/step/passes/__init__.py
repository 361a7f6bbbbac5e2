"""Rewrites of a step's flat graph: each takes a GraphModule and returns a changed copy.

A pass that breaks a rule (an invalid graph, another amount of data reduced) raises `PassError` and
leaves the graph it was given as it was.
"""

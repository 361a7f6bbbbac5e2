"""Timelines: read traces of all ranks, measure them, match their collectives, draw them.

Start at `read.read` (or `profile.profile_rank`), then `measures.measure` for every table, `diagnosis.explain` for
words, `match`, `changes` and `lanes`.
"""

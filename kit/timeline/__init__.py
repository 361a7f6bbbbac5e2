"""Timelines: read traces of all ranks, measure them, match their collectives, draw them.

Start at `read.read` (or `profile.profile_rank`), then `measure`, `match`, `table` and `lanes`.
"""

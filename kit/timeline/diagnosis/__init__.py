"""Say in words where time was lost and what to try: facts of a timeline, rules on them, at most five findings.

Start at `explain.explain`.
"""

"""Cut a graph over devices: what must stay together, the exact search, the report, stages that run.

`cut.cut` makes the record (`record.Cut`), `report` shows it, `run.stages` turns it into modules.
Only `run` needs torch.
"""

"""One static graph for a distributed training step: strategy, trace, passes, plan, run."""

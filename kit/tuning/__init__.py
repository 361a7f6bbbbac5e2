"""Micro-batch and accumulation at a fixed global batch: measure, compare, choose."""

"""Capture a model as a graph record, price it, lay it out, draw it."""

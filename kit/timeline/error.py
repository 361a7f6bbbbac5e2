"""The one error of this room, so that a caller needs to catch one name whatever the file was."""


class TraceError(ValueError):
    """A trace that cannot be read; the text names the file, the place and what was expected."""


class NoTraceError(TraceError):
    """A file that is something else than a trace; a folder may hold such files."""

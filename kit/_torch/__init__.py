"""The only room that touches torch's private names.

One module a neighbour; each says on which versions its names were seen to work, so that a new
torch release is checked here and nowhere else.
"""

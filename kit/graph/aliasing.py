"""Which values share memory, told from storage identities and operator schemas.

Identities alone miss a value whose metadata a pass has copied, schemas alone miss what a composite
operator decides at run time (`reshape` may copy or not), so both are joined here.
"""


class SharedMemory:
    """Which storages are one: a union-find over storage identities, numbered by first use."""

    def __init__(self) -> None:
        self._parent: dict[object, object] = {}
        self._numbers: dict[object, int] = {}

    def find(self, key: object) -> object:
        """The representative of all keys joined with `key`."""
        root = key
        while (parent := self._parent.get(root, root)) != root:
            root = parent
        if root != key:
            self._parent[key] = root
        return root

    def join(self, kept: object, other: object) -> None:
        """State that two keys are one memory."""
        kept, other = self.find(kept), self.find(other)
        if kept != other:
            self._parent[other] = kept

    def number(self, key: object) -> int:
        """A small number for the memory of `key`, given out in order of first asking."""
        return self._numbers.setdefault(self.find(key), len(self._numbers))

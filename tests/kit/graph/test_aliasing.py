"""Union of memories."""

from kit.graph.aliasing import SharedMemory


def test_joined_keys_have_one_number_and_others_another() -> None:
    memory = SharedMemory()
    memory.join("a", "b")
    memory.join("c", "d")
    memory.join("b", "c")
    assert [memory.number(key) for key in "abcde"] == [0, 0, 0, 0, 1]

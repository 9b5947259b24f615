"""Topic exchanges: patterns of words in a trie.

A match keeps the set of trie nodes reachable by the words so far, like the simulation of an NFA. It costs at most
words times nodes: patterns with several `#` do not backtrack exponentially.
"""

from __future__ import annotations

from flyball.broker.engine.routing.tables import Headers, Table, Targets
from flyball.model import TOPIC_PLACE_BYTES, Binding


def words_of(key: str) -> list[str]:
    """Split a routing key into words. An empty key has no words; otherwise empty words count."""
    return key.split(".") if key else []


class _TrieNode:
    """A prefix of words of one or more patterns."""

    __slots__ = ("by_word", "hash", "is_hash", "seen", "star", "targets")

    def __init__(self, is_hash: bool) -> None:
        self.by_word: dict[str, _TrieNode] = {}
        self.star: _TrieNode | None = None
        self.hash: _TrieNode | None = None
        # Whether its last word is `#`, which matches any further words.
        self.is_hash = is_hash
        self.targets = Targets()
        # The last step of a match that reached it: a step visits each node once.
        self.seen = 0

    @property
    def empty(self) -> bool:
        return not self.by_word and self.star is None and self.hash is None and self.targets.empty

    def next(self, word: str) -> _TrieNode | None:
        if word == "*":
            return self.star
        if word == "#":
            return self.hash
        return self.by_word.get(word)

    def set_next(self, word: str, place: _TrieNode) -> None:
        if word == "*":
            self.star = place
        elif word == "#":
            self.hash = place
        else:
            self.by_word[word] = place

    def drop_next(self, word: str) -> None:
        if word == "*":
            self.star = None
        elif word == "#":
            self.hash = None
        else:
            del self.by_word[word]


class TopicTable(Table):
    """Matches routing keys with patterns: `*` stands for one word, `#` for zero or more."""

    __slots__ = ("_root", "_size", "_step")

    def __init__(self) -> None:
        self._root = _TrieNode(is_hash=False)
        # Number of nodes.
        self._size = 0
        self._step = 0

    @property
    def size_bytes(self) -> int:
        return TOPIC_PLACE_BYTES * self._size

    def add(self, binding: Binding) -> None:
        place = self._root
        for word in words_of(binding.routing_key):
            following = place.next(word)
            if following is None:
                following = _TrieNode(is_hash=word == "#")
                place.set_next(word, following)
                self._size += 1
            place = following
        place.targets.add(binding)

    def remove(self, binding: Binding) -> None:
        words = words_of(binding.routing_key)
        path = [self._root]
        for word in words:
            following = path[-1].next(word)
            assert following is not None
            path.append(following)
        path[-1].targets.remove(binding)
        while words and path.pop().empty:
            path[-1].drop_next(words.pop())
            self._size -= 1

    def match(self, routing_key: str, headers: Headers) -> list[Targets]:
        self._step += 1
        places: list[_TrieNode] = []
        self._reach(self._root, places)
        for word in words_of(routing_key):
            self._step += 1
            before = places
            places = []
            for place in before:
                if place.is_hash:
                    self._reach(place, places)
                by_word = place.by_word.get(word)
                if by_word is not None:
                    self._reach(by_word, places)
                if place.star is not None:
                    self._reach(place.star, places)
            if not places:
                return []
            headers.count_places(len(places))
        return [place.targets for place in places if not place.targets.empty]

    def _reach(self, place: _TrieNode, places: list[_TrieNode]) -> None:
        """Add the node and those reachable through `#` without a further word, unless this step has them already."""
        reached: _TrieNode | None = place
        while reached is not None and reached.seen != self._step:
            reached.seen = self._step
            places.append(reached)
            reached = reached.hash

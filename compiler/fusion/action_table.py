"""The legal actions of one sequence in order, kept up to date: after a change only the rows near it are made again.

A row has the actions listed at one node, kind by kind. It may depend on the node, on its producers and consumers and
their numbers, on the next node, the next node of its shape, and the next reader of each value that it reads; for kinds
with `needs_path` also on the paths between the nodes of an action. Everything else about a row is fixed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compiler.analysis.order import STRIDE_BITS
from compiler.fusion.actions import FusionAction
from compiler.fusion.interval_grid import IntervalGrid
from compiler.fusion.reach import ALL_BITS
from compiler.fusion.rewriting import outputs_of
from compiler.fusion.row_list import RowList
from compiler.fusion.templates import SINGLE
from compiler.ir import HloInstruction

if TYPE_CHECKING:
    from compiler.fusion.kinds import ActionKind, Entry
    from compiler.fusion.sequence import SequenceState

MANY_CHANGES = 32
"""Number of changes whose regions are kept apart until the actions are asked for."""
_CANDIDATES, _LEGAL, _SAVINGS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a fusible node among the others.

    Attributes:
        key: its key.
        producers: the nodes it reads.
        shape: nodes of equal shape may be fused side by side.
        may_join: whether other nodes may be fused side by side with it.
    """

    key: int
    producers: tuple[HloInstruction, ...]
    shape: Hashable
    may_join: bool = True


@dataclass(slots=True)
class _Row:
    """The actions listed at a node.

    Attributes:
        entries: actions without an obvious reason against them.
        free: those of them against which no path speaks either; they fail only when their kernel is made.
        legal: those that are legal; None if that is not known yet.
        savings: what these save; None if that is not known yet.
        watched: nodes on which it depends whether paths speak against an entry.
        ends: the bits of the nodes to which these paths lead, see `Reach`.
    """

    entries: list[Entry]
    free: list[Entry] = field(default_factory=list)
    legal: list[Entry] | None = None
    savings: list[float] | None = None
    watched: tuple[HloInstruction, ...] = ()
    ends: int = 0


class ActionTable:
    """The legal actions of a sequence in a fixed order: by the key of the node at which they are listed, then by kind.

    After each change, call `change`.

    Args:
        sequence: whose actions are listed.
        kinds: the kinds of these actions.
    """

    def __init__(self, sequence: SequenceState, kinds: Sequence[ActionKind]) -> None:
        self._sequence, self._kinds = sequence, tuple(kinds)
        self._rows: dict[int, _Row] = {}
        self._places: dict[HloInstruction, _Place] = {}
        self._node_at: dict[int, HloInstruction] = {}
        self._readers: dict[HloInstruction, list[int]] = {}
        self._alike: dict[Hashable, list[int]] = {}
        self._keys: list[int] = []
        self._spans: IntervalGrid[int] = IntervalGrid(STRIDE_BITS + 4)
        self._listing: RowList[Any] = RowList(self._free_entries, self._legal_entries, self._row_savings)
        self._changed: dict[HloInstruction, None] = dict.fromkeys(sequence.nodes.values)
        self._stale: dict[HloInstruction, None] = {}
        self._readers_of_constants: dict[HloInstruction, None] = {}
        self._regions: list[tuple[list[HloInstruction], int, int]] = []
        self._reach = sequence.reach
        self._moved = {} if self._reach is None else self._reach.listen()
        self._watching: dict[HloInstruction, dict[int, None]] = {}

    # ---- queries

    def entries(self) -> list[Entry]:
        """Return the legal actions with their nodes; the list must not be changed."""
        self._refresh()
        found: list[Entry] = self._listing.flat(_LEGAL)
        return found

    def savings(self) -> list[float]:
        """Return the seconds that each of `entries` saves per run of the sequence; the list must not be changed."""
        self._refresh()
        found: list[float] = self._listing.flat(_SAVINGS)
        return found

    def actions(self) -> list[FusionAction]:
        """Return the legal actions."""
        return [e.action for e in self.entries()]

    def candidates(self) -> list[FusionAction]:
        """Return the legal actions, in the same order, and others that fail only when their kernel is made."""
        self._refresh()
        return [e.action for e in self._listing.flat(_CANDIDATES)]

    def weighed_candidates(self) -> list[tuple[FusionAction, float]]:
        """Return `candidates`, each with the seconds that it saves per run of the sequence."""
        self._refresh()
        return [(e.action, self._saving(e)) for e in self._listing.flat(_CANDIDATES)]

    def next_reader(self, node: HloInstruction) -> HloInstruction | None:
        """Return the next fusible node, by key, that reads a value which this one reads too."""
        place = self._places[node]
        following = [k for p in place.producers if (k := _after(self._readers.get(p, []), place.key)) is not None]
        return self._node_at[min(following)] if following else None

    def next_alike(self, node: HloInstruction) -> HloInstruction | None:
        """Return the next fusible node, by key, of the same shape."""
        place = self._places[node]
        key = _after(self._alike[place.shape], place.key)
        return None if key is None else self._node_at[key]

    def next_unlike(self, node: HloInstruction) -> HloInstruction | None:
        """Return the next fusible node, by key, if it is of another shape."""
        place = self._places[node]
        key = _after(self._keys, place.key)
        found = None if key is None else self._node_at[key]
        return None if found is None or self._places[found].shape == place.shape else found

    # ---- changes

    def change(
        self,
        changed: Iterable[HloInstruction],
        around: Iterable[HloInstruction],
        low: int,
        high: int,
        readers: Iterable[HloInstruction] = (),
    ) -> None:
        """Note a change of the sequence; what follows from it is computed when the actions are asked for.

        Args:
            changed: nodes that were made, changed, removed or put back.
            around: nodes whose consumers changed, and those that read a constant together with a changed node.
            low: least rank of a node on whose paths something changed.
            high: the greatest one.
            readers: nodes that read constants of which the number of readers changed.
        """
        changed, around = list(changed), list(around)
        self._readers_of_constants.update(dict.fromkeys(readers))
        self._changed.update(dict.fromkeys(changed))
        self._stale.update(dict.fromkeys(around))
        if self._reach is not None:
            return
        if len(self._regions) < MANY_CHANGES:
            self._regions.append(([*changed, *around], low, high))
        else:  # the list was not asked for in a long time
            nodes, least, greatest = self._regions[-1]
            self._regions[-1] = nodes, min(low, least), max(high, greatest)

    def _refresh(self) -> None:
        if not self._changed and not self._stale:
            return
        changed, stale = self._changed, self._stale
        self._changed, self._stale = {}, {}
        around = list(stale)
        for p in around:
            self._stale_around(p, stale)
        stale.update(changed)
        for i in changed:
            if i in self._sequence.nodes:
                stale.update(dict.fromkeys(self._sequence.producers(i)))
                stale.update(dict.fromkeys(self._sequence.consumers(i)))
        self._update_places(stale, changed)
        made = {self._make_row(i) for i in stale if i in self._places}
        if self._reach is None:
            self._judge_paths_again(made)
        else:
            self._reach.update()
            self._judge_watching((*around, *changed), made)
        self._forget_savings()

    def _forget_savings(self) -> None:
        """Forget the savings of actions that may make constants superfluous whose number of readers changed."""
        near: dict[HloInstruction, None] = {}
        for i in self._readers_of_constants:
            if i in self._places:  # its actions are listed at these nodes
                near[i] = None
                near.update(dict.fromkeys(self._sequence.producers(i)))
                near.update(dict.fromkeys(self._sequence.consumers(i)))
                self._stale_before(self._places[i], near)
        self._readers_of_constants = {}
        for key in [self._places[i].key for i in near if i in self._places]:
            row = self._rows[key]
            varying = [e for e in row.entries if e.varies]
            for e in varying:
                e.saving = None
            if varying:
                row.savings = None
                self._listing.touch(key)

    def _stale_around(self, p: HloInstruction, stale: dict[HloInstruction, None]) -> None:
        """Add the consumers of a node if the number of its consumers makes a difference for them now."""
        if p in self._sequence.nodes and len(users := self._sequence.consumers(p)) <= 2:
            stale.update(dict.fromkeys(users))

    def _update_places(self, stale: dict[HloInstruction, None], changed: Iterable[HloInstruction]) -> None:
        """Give nodes their places, and add to `stale` those whose next reader or next node of the shape changed."""
        places = {i: self._place_of(i) for i in stale}
        moved = [(i, old, new) for i, new in places.items() if (old := self._places.get(i)) != new]
        for i, old, _ in moved:
            if old is not None:
                self._leave(i, old, stale)
        for i, _, new in moved:
            if new is not None:
                self._enter(i, new, stale)
        for i in changed:
            place = self._places.get(i)
            if place is not None:
                self._stale_before(place, stale)

    def _place_of(self, i: HloInstruction) -> _Place | None:
        s = self._sequence
        if i not in s.nodes or s.legality.refusal_of(i) is not None:
            return None
        values = s.nodes.values[i]
        key = max(values)
        last = outputs_of(i)[values.index(key)] if len(values) > 1 else i
        # A pair with it would be refused, and would hide the pair with the next node.
        may_join = s.legality.facts(i).template not in SINGLE
        return _Place(key, tuple(s.producers(i)), next(last.shape.leaves()).dimensions, may_join)

    def _leave(self, i: HloInstruction, place: _Place, stale: dict[HloInstruction, None]) -> None:
        self._stale_before(place, stale)
        self._unwatch(place.key)
        del self._places[i], self._node_at[place.key], self._rows[place.key]
        self._listing.remove(place.key)
        self._spans.remove(place.key)
        for keys in self._lists(place):
            del keys[bisect_left(keys, place.key)]
        for p in place.producers:
            if not self._readers.get(p, True):
                del self._readers[p]  # which would keep a removed fusion alive

    def _enter(self, i: HloInstruction, place: _Place, stale: dict[HloInstruction, None]) -> None:
        self._places[i], self._node_at[place.key], self._rows[place.key] = place, i, _Row([])
        self._listing.insert(place.key)
        for p in place.producers:
            self._readers.setdefault(p, [])
        self._alike.setdefault(place.shape, [])
        for keys in self._lists(place):
            insort(keys, place.key)
        self._stale_before(place, stale)

    def _stale_before(self, place: _Place, stale: dict[HloInstruction, None]) -> None:
        for keys in self._lists(place):
            n = bisect_left(keys, place.key)
            if n and (node := self._node_at.get(keys[n - 1])) is not None:
                stale[node] = None

    def _lists(self, place: _Place) -> list[list[int]]:
        """Return sorted keys: of the readers of each value that a node reads, of the nodes of its shape, and of all."""
        if not place.may_join:
            return []
        return [*(self._readers[p] for p in place.producers), self._alike[place.shape], self._keys]

    # ---- rows

    def _make_row(self, i: HloInstruction) -> int:
        key = self._places[i].key
        self._unwatch(key)
        row = self._rows[key] = _Row([e for kind in self._kinds for e in kind.entries(self._sequence, i)])
        if self._reach is not None:
            row.watched = tuple({n: None for e in row.entries if e.kind.needs_path for n in e.kind.watched(e)})
            for n in row.watched:
                self._watching.setdefault(n, {})[key] = None
        self._judge_paths(key, row)
        self._listing.touch(key)
        return key

    def _unwatch(self, key: int) -> None:
        for n in self._rows[key].watched:
            rows = self._watching[n]
            del rows[key]
            if not rows:
                del self._watching[n]

    def _judge_paths(self, key: int, row: _Row) -> None:
        """Find the entries against which no path speaks."""
        s = self._sequence
        row.free = [e for e in row.entries if not e.kind.needs_path or not e.kind.is_blocked(s, e)]
        if self._reach is None:
            self._set_span(key, row)
        else:
            row.ends = self._reach.bits_of((*row.watched, *[e.consumers[0] for e in row.entries if e.kind.needs_path]))

    def _set_span(self, key: int, row: _Row) -> None:
        rank = self._sequence.order.rank
        ranks = [rank(n) for e in row.entries if e.kind.needs_path for n in (e.producer, *e.consumers)]
        if ranks:
            self._spans.put(key, min(ranks), max(ranks))
        else:
            self._spans.remove(key)

    def _judge_paths_again(self, made: set[int]) -> None:
        """Look again at rows whose actions may be affected by changes of paths, except those that were just made."""
        changes, self._regions = self._regions, []
        keys = dict.fromkeys(k for _, low, high in changes for k in self._spans.near(low, high) if k not in made)
        if not keys:
            return
        for key in keys:  # all of them first: a change may give nodes other ranks
            self._set_span(key, self._rows[key])
        affected = self._affected(changes[0][0], keys) if len(changes) == 1 else None
        for key in keys:
            row = self._rows[key]
            if affected is not None and not any(e.kind.needs_path and _concerns(e, *affected) for e in row.entries):
                continue
            self._judge_again(key, row)

    def _judge_watching(self, near: Iterable[HloInstruction], made: set[int]) -> None:
        """Look again at rows that watch nodes whose users changed, or on which other ends of their paths depend now.

        Args:
            near: nodes that changed, and those whose consumers did.
            made: keys of rows that were just made.
        """
        nodes, watching, rows = self._sequence.nodes.values, self._watching, self._rows
        producers, keys, changed = self._sequence.producers, dict[int, None](), self._moved
        changed.update(dict.fromkeys(near, ALL_BITS))
        bits_at = {i: bits for i, bits in changed.items() if i in watching}
        for i, bits in changed.items():
            if i in nodes:
                for p in producers(i):
                    if p in watching:
                        bits_at[p] = bits_at.get(p, 0) | bits
        for n, bits in bits_at.items():
            keys.update(dict.fromkeys([k for k in watching[n] if bits & rows[k].ends and k not in made]))
        self._moved.clear()
        for key in keys:
            self._judge_again(key, rows[key])

    def _judge_again(self, key: int, row: _Row) -> None:
        before = row.free
        self._judge_paths(key, row)
        if row.free != before:
            row.legal = row.savings = None
            self._listing.touch(key)

    def _affected(
        self, nodes: Sequence[HloInstruction], keys: Iterable[int]
    ) -> tuple[set[HloInstruction], set[HloInstruction]]:
        """Return what the nodes of one change depend on and what depends on them: paths between these may differ.

        Nothing further away than the ends of the rows of these keys matters.
        """
        spans = [self._spans.span(k) for k in keys if k in self._spans]
        if not spans:
            return set(), set()
        alive = [i for i in nodes if i in self._sequence.nodes]
        return self._sequence.order.around(alive, min(s[0] for s in spans), max(s[1] for s in spans))

    def _free_entries(self, key: int) -> list[Entry]:
        return self._rows[key].free

    def _legal_entries(self, key: int) -> list[Entry]:
        row = self._rows[key]
        if row.legal is None:
            row.legal = [e for e in row.free if (self._is_built(e) if e.built is None else e.built)]
        return row.legal

    def _is_built(self, e: Entry) -> bool:
        found = e.kind.has_kernel(self._sequence, e)
        if e.kind.has_pair:
            e.built = found
        return found

    def _row_savings(self, key: int) -> list[float]:
        row = self._rows[key]
        if row.savings is None:
            row.savings = [self._saving(e) for e in self._legal_entries(key)]
        return row.savings

    def _saving(self, e: Entry) -> float:
        """Return what an action saves, which stays as it is as long as the action is listed."""
        if e.saving is None or e.is_wide:
            e.saving = e.kind.saving(self._sequence, e)
        return e.saving


def _concerns(e: Entry, before: set[HloInstruction], after: set[HloInstruction]) -> bool:
    """Check whether a path between nodes that something depends on and nodes that depend on it concerns an action."""
    return any((e.producer in before and c in after) or (c in before and e.producer in after) for c in e.consumers)


def _after(keys: list[int], key: int) -> int | None:
    """Return the next key in a sorted list."""
    n = bisect_right(keys, key)
    return keys[n] if n < len(keys) else None

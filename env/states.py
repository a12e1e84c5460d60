"""The states of a program under decisions, remembered: a state that was met before costs a look-up and no compilation.

A state has what an agent sees of it. Decisions lead from state to state; those that lead to the same module lead to the
same state. The compilation itself follows only when it is needed: one episode is moved to a state by taking back
decisions and making others, so most steps on new states make one fusion. Memory is bounded: the least recently used
states are dropped, and computed again when they are reached again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from compiler.errors import HlogymError
from compiler.fusion.actions import FusionAction
from compiler.learned.features.compact import CompactGraph
from compiler.plan import Phase
from compiler.session import CompilationSession
from compiler.support.gc_pause import gc_paused
from compiler.support.lru_dict import LruDict
from env.episode import ALL_PASSES, Decision, Episode, KernelMoves, Move, Offers, Stop

__all__ = ["DecisionMemory", "DecisionState", "DecisionStates"]

MEMORY_BYTES = 32 << 20
"""Remembered states of all programs of an environment, by estimate."""
SESSIONS = 6
"""Number of places before fusion at which compilations of a program are kept, besides that at its start."""
MOST_USERS = 8
"""Most compilations that are kept at one of these places, one for each environment that shares the states."""
NEAR = 4
"""Number of decisions by which a compilation is moved rather than another one started."""
_STATE_BYTES = 3000
_MOVE_BYTES = 40
"""Of an action in the list of a state, most of which it shares with other states."""


@dataclass(frozen=True, eq=False)
class _Path:
    """The decision that led to a state and those before it."""

    before: _Path | None
    decision: Decision
    length: int
    began: bool
    """Whether fusion had begun when it was made, so that it can be undone."""


@dataclass(frozen=True, slots=True)
class _Texts:
    """The moves of a state as text.

    Attributes:
        start: with which all of them begin.
        rest: what follows, in lines; equal kernels share the text.
    """

    start: str
    rest: str

    def __len__(self) -> int:
        return len(self.rest)

    def at(self, index: int) -> str:
        """Return a move."""
        return self.start + self.rest.split("\n")[index]

    @staticmethod
    def of(moves: Sequence[Move]) -> _Texts:
        """Return the text of moves."""
        if isinstance(moves, KernelMoves):
            return _Texts(f"kernel {moves.site.id}: ", moves.choices.lines)
        return _Texts("", "\n".join(map(str, moves)))


@dataclass(eq=False)
class DecisionState:
    """What there is to see after some decisions.

    Attributes:
        key: equal for states that offer the same.
        phase: of the next decision; "done" after the last one.
        count: number of legal decisions now.
        seconds: estimated time of the module by the cost model.
        graph: features of the decision.
        fuses: whether fusion had begun, so that a decision can be undone.
        notes: facts that users of the state have computed, by names of their choice.
    """

    key: Hashable
    phase: Phase
    count: int
    seconds: float
    graph: CompactGraph
    fuses: bool
    _moves: Sequence[FusionAction | Stop] | _Texts  # as text if their objects would keep a module alive
    notes: dict[str, Any] = field(default_factory=dict)
    _path: _Path | None = None
    _next: dict[int, Hashable] = field(default_factory=dict)  # keys, so that a state keeps no other one alive

    @property
    def done(self) -> bool:
        """Whether every decision has been taken."""
        return self.phase == "done"

    def text(self, index: int) -> str:
        """Return a legal decision as text."""
        return self._moves.at(index) if isinstance(self._moves, _Texts) else str(self._moves[index])


class DecisionMemory(LruDict[Hashable, DecisionState]):
    """States by program and key; the programs of an environment share one memory.

    Args:
        limit: estimated bytes of all states together.

    Attributes:
        users: number of environments that share it; each needs a compilation of its own, which follows its episode.
    """

    def __init__(self, limit: float = MEMORY_BYTES) -> None:
        super().__init__(limit, lambda _, s: _bytes_of(s))
        self.users = 0


def _bytes_of(state: DecisionState) -> int:
    each = 1 if isinstance(state._moves, _Texts) else _MOVE_BYTES
    return _STATE_BYTES + state.graph.nbytes + len(state._moves) * each


class DecisionStates:
    """The states of one program.

    Args:
        name: of the program, by which the memory tells it from others.
        start: the session that episodes start from; it is not changed.
        phases: what is decided.
        memory: where states are stored.
        offers: what the decisions are.
        default_loops: whether the default policy decides loops, see `Episode`.

    Attributes:
        root: the state at the start.
        met: number of decisions that led to a state that was not known.
        remembered: number of decisions that were looked up.
    """

    def __init__(
        self,
        name: str,
        start: CompilationSession,
        phases: Sequence[Phase],
        memory: DecisionMemory,
        offers: Offers = ALL_PASSES,
        default_loops: bool = False,
    ) -> None:
        self._name, self._memory = name, memory
        self._start = Episode(start.fork(), phases, offers, default_loops)
        self._episodes: LruDict[_Path | None, list[tuple[Episode, _Path | None]]] = LruDict(SESSIONS)
        self.met = self.remembered = 0
        root = self._start.fork()
        self.root = self._see(root, None, self._key(root))

    def take(self, state: DecisionState, index: int) -> DecisionState | str:
        """Return the state after a decision, or the reason why it cannot be taken."""
        if state.done:
            return "the episode is over"
        if not 0 <= index < state.count:
            return f"action {index} is not among the {state.count} legal ones"
        key = state._next.get(index)
        found = None if key is None else self._known(key)
        if found is not None:
            self.remembered += 1
            return found
        self.met += 1
        # Before fusion begins, whole modules are copied, of which one should be freed before the next is made.
        with gc_paused() if state.fuses else nullcontext():
            return self._take_new(state, index)

    def _take_new(self, state: DecisionState, index: int) -> DecisionState | str:
        """Return the state after a decision that is not known to lead to a remembered state, see `take`."""
        episode = self.episode(state)
        began = state.fuses or episode.is_fusing
        # What a state lists is legal, so that a compilation which has come back to it need not list it again.
        move = episode.moves[index] if isinstance(state._moves, _Texts) else state._moves[index]
        decision = Decision.of(move)
        path = _longer(state._path, decision, began)
        if not path.began:
            episode = episode.fork()
        try:
            episode.decide(decision)
        except HlogymError as error:
            return f"{state.text(index)}: {error}"
        self._keep(episode, path)
        key = self._key(episode)
        following = self._known(key)
        if following is None:
            following = self._see(episode, path, key)
        elif following is not self.root:
            # The compilation has just come here. Equal states list their moves in one order, but names differ by path.
            following._path, following._moves = path, self._listed(episode)
        state._next[index] = following.key
        return following

    def episode(self, state: DecisionState) -> Episode:
        """Return the compilation that leads to a state; it is valid, and must not be changed, until the next call."""
        path = state._path
        episode, at = self._episode_near(path)
        back, forth = _between(at, path)
        for step in back:
            episode.undo(step.decision)
        for step in forth:
            episode.decide(step.decision)
        self._keep(episode, path)
        return episode

    def moves(self, state: DecisionState) -> Sequence[Move]:
        """Return the legal decisions of a state."""
        return tuple(self.episode(state).moves)

    # ---- inside

    def _key(self, episode: Episode) -> Hashable:
        return self._name, episode.key

    def _known(self, key: Hashable) -> DecisionState | None:
        return self.root if key == self.root.key else self._memory.get(key)

    @staticmethod
    def _listed(episode: Episode) -> Sequence[FusionAction | Stop] | _Texts:
        """Return the moves of the state that an episode is in, by the names that its path gave to instructions."""
        if episode.phase == "fusion":  # there are hundreds of them in each state
            return cast("tuple[FusionAction | Stop, ...]", tuple(episode.moves))
        return _Texts.of(episode.moves)

    def _see(self, episode: Episode, path: _Path | None, key: Hashable) -> DecisionState:
        """Return the state that an episode is in, and remember it."""
        listed, graph = self._listed(episode), episode.compact_graph()
        seconds, fuses = episode.seconds(), episode.is_fusing
        made = DecisionState(key, episode.phase, len(episode.moves), seconds, graph, fuses, listed, _path=path)
        if path is not None:
            self._memory[key] = made
        return made

    def _episode_near(self, path: _Path | None) -> tuple[Episode, _Path | None]:
        """Return an episode whose decisions before fusion are those of a path, and the path that it is at."""
        base = _base(path)
        kept = self._episodes.get(base) or []
        if kept:
            distance, best = min((_distance(at, path), n) for n, (_, at) in enumerate(kept))
            if distance <= NEAR or len(kept) >= min(self._memory.users, MOST_USERS):
                return kept[best]
        if base is None:
            episode = self._start.fork()
        else:
            before, _ = self._episode_near(base.before)
            episode = before.fork()
            episode.decide(base.decision)
        self._keep(episode, base)
        return episode, base

    def _keep(self, episode: Episode, path: _Path | None) -> None:
        """Note which path an episode is at."""
        base = _base(path)
        kept = [k for k in self._episodes.get(base) or [] if k[0] is not episode]
        most = max(1, min(self._memory.users, MOST_USERS))
        self._episodes[base] = [*kept[max(0, len(kept) + 1 - most) :], (episode, path)]


def _longer(path: _Path | None, decision: Decision, began: bool) -> _Path:
    return _Path(path, decision, 1 if path is None else path.length + 1, began)


def _base(path: _Path | None) -> _Path | None:
    """Return the part of a path before fusion began."""
    while path is not None and path.began:
        path = path.before
    return path


def _between(start: _Path | None, end: _Path | None) -> tuple[list[_Path], list[_Path]]:
    """Return the decisions to take back, the last one first, and those to make, from one path to another."""
    back: list[_Path] = []
    forth: list[_Path] = []
    while start is not end:
        if end is None or (start is not None and start.length >= end.length):
            assert start is not None  # noqa: S101 - they are not the same
            back.append(start)
            start = start.before
        else:
            forth.append(end)
            end = end.before
    return back, forth[::-1]


def _distance(start: _Path | None, end: _Path | None) -> int:
    """Return the number of decisions to take back and to make from one path to another."""
    back, forth = _between(start, end)
    return len(back) + len(forth)

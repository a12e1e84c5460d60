"""How many threads, blocks and elements per thread the loops of a GPU kernel get, unless its schedule says so.

The rules assume a GPU of 132 multiprocessors that reaches the bandwidth of its memory with about a thousand threads on
each of them, which load a few bytes each at a time. No rule has been tuned by measurements yet.
"""

from __future__ import annotations

from compiler.codegen.nest.loop_ir import Team
from compiler.codegen.schedules.schedule import Schedule

MULTIPROCESSORS = 132
"""Multiprocessors of an H100."""
FULL_THREADS = MULTIPROCESSORS * 1024
"""Number of threads that keep the memory busy."""
WARP = 32
"""Threads of a warp, which exchange values without a barrier."""
MAX_THREADS = 1024
"""Maximum number of threads of a block."""
ACCESS_BYTES = 16
"""Maximum size of an access by one thread."""
COMBINE_BYTES = 40 * 1024
"""Maximum shared memory in which the threads of a block combine their accumulators."""
BLOCK_BYTES = 99 * 1024
"""Dynamic shared memory that a block may have on every GPU from sm_80 on; on an A100 it may have 163 KiB, on an H100 or
B200 227 KiB."""
ELEMENTS = 8
"""Elements of a row that a thread of a team should reduce, so that several loads are under way."""
SECTOR_BYTES = 32
"""Size of what moves at least between memory and the caches."""
LEAST_ROWS = 4
"""Elements that each thread of a column should reduce if more threads than those of a warp share it."""
UNROLLED_WORK = 256
"""Maximum number of statements that one thread executes without a loop."""
ROWS_UNROLLED = 8
"""Maximum number of iterations of a loop over the elements of a thread that are written out."""


def floor_power(n: int) -> int:
    """Return the greatest power of two that is at most `n`, which is positive."""
    return 1 << (n.bit_length() - 1)


def ceil_power(n: int) -> int:
    """Return the least power of two that is at least `n`, which is positive."""
    return 1 << (n - 1).bit_length()


def most_threads(schedule: Schedule, default: int) -> int:
    """Return the threads per block that a schedule asks for, as a power of two, or the default."""
    return max(WARP, floor_power(schedule.block)) if schedule.block else default


def flat_threads(iterations: int, schedule: Schedule) -> int:
    """Return the threads per block of a loop without reductions."""
    few = iterations < MULTIPROCESSORS * 256
    return min(most_threads(schedule, 128 if few else 256), max(WARP, ceil_power(max(1, iterations))))


def row_team(rows: int, elements: int, schedule: Schedule) -> Team:
    """Return the threads that reduce adjacent elements: a part of a warp, a warp, or a block for each row."""
    size = ceil_power(max(1, -(-elements // ELEMENTS)))
    while size * 2 <= elements and rows * size < FULL_THREADS and size < MAX_THREADS:
        size *= 2
    if WARP < size <= 4 * WARP and rows >= MULTIPROCESSORS * 64:
        size = WARP  # there are enough warps for each of them to reduce a row without a barrier
    most = most_threads(schedule, MAX_THREADS)
    if schedule.gpu.team:
        size = floor_power(schedule.gpu.team)
    size = min(size, most)
    threads = max(size, WARP)
    while threads < min(most, 256) and -(-rows * size // (2 * threads)) >= MULTIPROCESSORS * 4:
        threads *= 2
    return Team(size, threads // size)


def column_team(columns: int, rows: int, schedule: Schedule, sector: int = WARP, aligned: bool = True) -> Team:
    """Return the threads that reduce elements that are not adjacent, so that adjacent threads read adjacent ones.

    Args:
        columns: number of results.
        rows: number of elements of each.
        schedule: may set the number of threads.
        sector: number of adjacent elements below which accesses to memory are not whole.
        aligned: whether so many adjacent elements are one sector; otherwise they lie in two, and fewer columns than
            those of a warp are worth it if twice as many multiprocessors have blocks.
    """
    most = most_threads(schedule, MAX_THREADS)
    wide = min(WARP, ceil_power(columns))
    enough = MULTIPROCESSORS if aligned else MULTIPROCESSORS // 2
    while wide > sector and -(-columns // wide) < enough and most // wide * LEAST_ROWS <= rows:
        wide //= 2
    size = 1
    while columns * size < FULL_THREADS and size * 4 <= rows and size * wide < most:
        size *= 2
    if schedule.gpu.team:
        size = min(floor_power(schedule.gpu.team), most // wide)
    threads = max(min(most_threads(schedule, 256), MAX_THREADS), size * wide)
    while threads > max(WARP, size * wide) and -(-columns * size // threads) < MULTIPROCESSORS * 4:
        threads //= 2
    return Team(size, threads // size, True)


def in_block(team: Team, threads: int) -> Team:
    """Return a team for blocks of another number of threads."""
    size = min(team.size, threads)
    return Team(size, threads // size, team.strided)


def blocks_of(rounds: int, schedule: Schedule) -> int:
    """Return the number of blocks that run a loop of so many rounds."""
    return min(rounds, schedule.gpu.waves * MULTIPROCESSORS) if schedule.gpu.waves else rounds

"""Sums of segments of K, added in the fixed binary tree of design 7.2 as they arrive.

Of the sums that wait there is at most one a level: adding one more is counting up by one in binary.
"""

import triton
import triton.language as tl


@triton.jit
def settle(value, waiting, index: tl.constexpr, level: tl.constexpr, last: tl.constexpr):
    """(value, waiting) after sum ``index``, of 0 … ``last``, met the one waiting at ``level``; levels go upwards."""
    below: tl.constexpr = (1 << level) - 1
    arrives: tl.constexpr = (index & below) == below  # all below were full: nothing of this value stayed there
    if ((index >> level) & 1) == 1:
        if arrives or index == last:
            value = waiting + value
    elif arrives and index != last:
        waiting = value
    return value, waiting


@triton.jit
def settle_in_memory(value, addresses, slab, index, last, LEVELS: tl.constexpr):
    """``settle`` at every level, where one that waits does so at ``addresses`` + level · ``slab``.

    Neither ``index`` nor the level is a constant: unrolled, what all of it holds would not fit into registers.
    """
    tl.debug_barrier()  # one thread may load what another stored
    for level in range(LEVELS):
        below = (1 << level) - 1
        arrives = (index & below) == below
        is_full = ((index >> level) & 1) == 1
        if is_full & (arrives | (index == last)):
            value = tl.load(addresses + level * slab) + value
        if arrives & (is_full == 0) & (index != last):
            tl.store(addresses + level * slab, value)
    return value

"""Closed intervals of whole numbers, as pairs (first, last)."""

from itertools import pairwise


def length(interval):
    first, last = interval
    return last - first + 1


def overlap(a, b):
    """The interval that two have in common; None: they have nothing."""
    first, last = max(a[0], b[0]), min(a[1], b[1])
    return (first, last) if first <= last else None


def merged(intervals):
    """The same numbers in as few intervals as possible, in order."""
    result = []
    for first, last in sorted(intervals):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def gaps(intervals):
    """What lies between intervals, in order."""
    known = merged(intervals)
    return [(a[1] + 1, b[0] - 1) for a, b in pairwise(known)]


def covered(intervals, number):
    return any(first <= number <= last for first, last in intervals)

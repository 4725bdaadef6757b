from intervals import covered, gaps, length, merged, overlap


def test_length():
    assert length((3, 3)) == 1
    assert length((-2, 2)) == 5


def test_overlap():
    assert overlap((1, 4), (3, 9)) == (3, 4)
    assert overlap((1, 4), (4, 9)) == (4, 4)
    assert overlap((1, 4), (5, 9)) is None


def test_merged():
    assert merged([(5, 9), (1, 3)]) == [(1, 3), (5, 9)]
    assert merged([(1, 9), (2, 3)]) == [(1, 9)]
    assert merged([(1, 3), (4, 6)]) == [(1, 6)]


def test_gaps():
    assert gaps([(1, 3), (7, 9), (20, 21)]) == [(4, 6), (10, 19)]
    assert gaps([(1, 3), (4, 6)]) == []


def test_covered():
    assert covered([(1, 3), (7, 9)], 7)
    assert covered([(1, 3), (7, 9)], 9)
    assert not covered([(1, 3), (7, 9)], 4)

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.text.stop_strings import StopSearch
from ipc.errors import RequestError


def first_complete(text: str, stops: list[str]) -> tuple[str, int] | None:
    """The definition, by brute force: the smallest end; there, the longest stop string."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return max(matches, key=len), end
    return None


texts = st.text(alphabet="ab", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4)


@given(pieces=st.lists(texts, max_size=6), stops=stop_lists)
@example(pieces=["aab", "aaab"], stops=["aaab"])
@example(pieces=["abc"], stops=["b", "ab", "c"])
def test_any_pieces_find_the_first_complete_match(pieces: list[str], stops: list[str]) -> None:
    search, before, found = StopSearch(stops), 0, None
    for piece in pieces:
        match = search.advance(piece, may_match=True)
        if match is not None:
            found = match[0], before + match[1]
            break
        before += len(piece)
        text = "".join(pieces)[:before]
        held = [n for n in range(1, len(text) + 1) for stop in stops if len(stop) > n and stop.startswith(text[-n:])]
        assert search.num_held == max(held, default=0)
    assert found == first_complete("".join(pieces), stops)


@given(pieces=st.lists(texts, max_size=6), stops=stop_lists, num_passed_over=st.integers(0, 6))
@example(pieces=["aba", "ba"], stops=["aba"], num_passed_over=1)  # its last character begins the next
def test_matches_that_end_early_are_passed_over(pieces: list[str], stops: list[str], num_passed_over: int) -> None:
    search, before, found = StopSearch(stops), 0, None
    for index, piece in enumerate(pieces):
        match = search.advance(piece, may_match=index >= num_passed_over)
        if match is not None:
            found = match[0], before + match[1]
            break
        before += len(piece)
    text, first_end = "".join(pieces), len("".join(pieces[:num_passed_over])) + 1
    ends = ((end, [stop for stop in stops if text[:end].endswith(stop)]) for end in range(first_end, len(text) + 1))
    assert found == next(((max(matches, key=len), end) for end, matches in ends if matches), None)


@given(text=texts, stops=stop_lists)
def test_order_of_the_list_does_not_matter(text: str, stops: list[str]) -> None:
    forwards, backwards = StopSearch(stops), StopSearch(stops[::-1])
    assert forwards.advance(text, may_match=True) == backwards.advance(text, may_match=True)


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        StopSearch(["a", ""])
    assert caught.value.param == "stop"


class CountingStop(str):
    """Counts the comparisons of its characters."""

    num_reads = 0

    def __getitem__(self, index: object) -> str:
        CountingStop.num_reads += 1
        return super().__getitem__(index)  # type: ignore[index]


def test_work_for_a_character_does_not_grow() -> None:
    stop = CountingStop("a" * 499 + "b")
    search = StopSearch([stop])
    reads = []
    for _ in range(40):
        before = CountingStop.num_reads
        for _ in range(100):
            assert search.advance("aa", may_match=True) is None
        reads.append(CountingStop.num_reads - before)
    assert max(reads) <= 4 * 200  # per character: the two comparisons of the automaton and the jump to a first one
    assert reads[-1] <= 1.5 * reads[10]
    assert search.advance("ab", may_match=True) == (stop, 2)

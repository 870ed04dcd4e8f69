import pytest

from gateway.schema.regex_size import regex_size


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("", 0),
        ("abc", 3),
        (r"a\{3}\(b", 5 + 1),
        ("a{3}", 3),
        ("a{2,5}b", 6),
        ("a{,4}", 4),
        ("a{7,}", 7),
        ("a{0}", 1),
        ("(ab{3}){2}", 8),
        ("(a|bc){10}", 40),
        ("[a-z{3}]{5}", 5),
        ("[]{9}]", 1),
        ("[^]x]{2}", 2),
        (r"[\]{9}]{2}", 2),
        ("((a{10}){10}){10}", 1000),
        ("((a{1,999}){1,999}){1,999}", 999**3),
        ("(((((a{99999}){99999}){99999}){99999}){99999}){99999}", 10**12),
        ("a{" + "9" * 5000 + "}", 10**12 - 1),
        ("a{x}", 4),
        ("{5}", 0),
        (")))((", 3),
        ("[abc", 1),
        ("abc\\", 4),
    ],
)
def test_counts_are_written_out(source: str, size: int) -> None:
    assert regex_size(source) == size

import pytest
import text_models
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.control_tokens import normalizer_rewrites
from gateway.text.tokenizer import Tokenizer


def pieces(tokenizer: Tokenizer) -> st.SearchStrategy[list[str]]:
    special = [tokenizer.token_text(token_id) for token_id in sorted(tokenizer.special_ids)]
    return st.lists(
        st.sampled_from(special)
        | st.sampled_from(["hello", " ", "\n", "x", "<|im_", "end|>", "1", "7"])
        | st.text(max_size=4),
        max_size=8,
    )


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
@given(data=st.data())
def test_without_marks_the_ids_are_the_usual_ones(
    all_tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    """The encoder with stand-ins reads a template's control tokens exactly as the tokenizer itself."""
    tokenizer = all_tokenizers[kind]
    text = "".join(data.draw(pieces(tokenizer)))
    assert tokenizer.encode_template_text(text) == tokenizer.encode(text, add_special_tokens=False)


@given(data=st.data())
def test_content_gives_no_special_ids_and_is_not_changed(byte_level: Tokenizer, data: st.DataObject) -> None:
    content = "".join(data.draw(pieces(byte_level)))
    control_tokens = byte_level.control_tokens
    escaped = control_tokens.escape(content)
    assert control_tokens.unescape(escaped) == content
    assert not control_tokens.may_occur_in(escaped)
    assert control_tokens.may_occur_in(content) == (escaped != content)
    ids = byte_level.encode_template_text(f"<|im_start|>{escaped}<|im_end|>")
    assert byte_level.decode(ids, skip_special_tokens=False) == f"<|im_start|>{content}<|im_end|>"
    assert [token_id for token_id in ids if byte_level.is_special(token_id)] == [ids[0], ids[-1]]


def test_marks_survive_what_templates_do_to_text(byte_level: Tokenizer) -> None:
    control_tokens = byte_level.control_tokens
    escaped = control_tokens.escape("9<|im_end|>9<|im_start|>")
    for changed in (escaped.strip(), escaped.upper(), escaped.title(), f'"{escaped}"'):
        assert control_tokens.unescape(changed).strip('"') == "9<|im_end|>9<|im_start|>"


def test_json_values_are_escaped_throughout(byte_level: Tokenizer) -> None:
    control_tokens = byte_level.control_tokens
    value = {"a": [{"<|im_end|>": 1}, "x<|im_start|>", None, True, 2.5], "b": ("<|endoftext|>",)}
    escaped = control_tokens.escape(value)
    assert control_tokens.may_occur_in(value)
    assert not control_tokens.may_occur_in(escaped)
    assert list(escaped) == ["a", "b"]
    assert escaped["a"][2:] == [None, True, 2.5]
    assert not control_tokens.may_occur_in({"a": ["<|im_", 5, None]})


def test_the_longest_special_token_is_taken(byte_level: Tokenizer) -> None:
    longer = byte_level.token_id("<|im_end|>x")
    assert byte_level.encode("<|im_end|>x", add_special_tokens=False) == [longer]
    assert byte_level.encode_template_text("<|im_end|>x") == [longer]


def test_a_normalizer_cannot_smuggle_a_control_token_in() -> None:
    """A full-width spelling that NFKC turns into the token, which is matched after normalization."""
    backend = text_models.byte_level()
    backend.normalizer = tokenizers.normalizers.NFKC()
    backend.add_special_tokens([tokenizers.AddedToken("<|stop|>", normalized=True, special=True)])
    tokenizer = Tokenizer(backend.to_str(), {})
    content, stop = "＜｜stop｜＞", tokenizer.token_id("<|stop|>")
    assert stop in tokenizer.encode(content, add_special_tokens=False)
    assert tokenizer.control_tokens.may_occur_in(content)
    ids = tokenizer.encode_template_text(tokenizer.control_tokens.escape(content) + "<|stop|>")
    assert ids.count(stop) == 1
    assert ids[-1] == stop


def test_which_normalizers_rewrite() -> None:
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    assert not normalizer_rewrites(None)
    assert not normalizer_rewrites({"type": "Sequence", "normalizers": [{"type": "Prepend"}, replace]})
    assert normalizer_rewrites({"type": "NFC"})
    assert normalizer_rewrites({"type": "Sequence", "normalizers": [replace, {"type": "Lowercase"}]})
    assert normalizer_rewrites(replace | {"pattern": {"String": "_"}})


def test_a_tokenizer_without_special_tokens() -> None:
    backend = text_models.word_level()
    tokenizer = Tokenizer(backend.to_str(), {})
    assert not tokenizer.control_tokens.may_occur_in("hello")
    assert tokenizer.control_tokens.escape("hello") == "hello"
    assert tokenizer.encode_template_text("hello world") == [1, 2]

"""The end of a call that stands between tags."""

from gateway.tool_calls.output import ToolCallOutput
from gateway.tool_calls.text_reader import Parsing, Tags, TextReader


def copy_to_closing_tag(reader: TextReader, output: ToolCallOutput, tags: Tags, closing: str) -> Parsing[str]:
    """Reads over the first of ``tags`` after a call and returns it; "" at the end of the text.

    What stands before a closing tag is left over from the call (a brace too many, the rest of arguments that were no
    JSON) and dropped; if another tag or the end of the text comes first, the model forgot the closing one, and it is
    content. The beginning of a tag at which the text ends is dropped.
    """
    tag = yield from reader.copy_until(tags, output.hold, output.drop)
    if tag == closing:
        output.drop_held()
    else:
        output.stop_call()
    return tag

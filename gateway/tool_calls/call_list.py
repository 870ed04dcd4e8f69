"""Calls in a list: in square brackets, with commas between them."""

from collections.abc import Callable

from gateway.tool_calls.output import ToolCallOutput
from gateway.tool_calls.text_reader import Parsing, TextReader


def read_list(reader: TextReader, output: ToolCallOutput, read_call: Callable[[], Parsing[bool]]) -> Parsing[None]:
    """Reads ``[call, call]``, or what of it there is: held text that belongs to no call becomes content.

    ``read_call`` reads a call, white space before it included, and says whether it was complete.
    """
    is_open = bool((yield from reader.copy_mark("[", output.hold)))
    while is_open and (yield from read_call()):
        mark = yield from reader.copy_mark(",]", output.hold)
        is_open = mark == "," and (yield from _has_more(reader, output))
        if mark and not is_open:
            output.drop_held()
    output.stop_call()


def _has_more(reader: TextReader, output: ToolCallOutput) -> Parsing[bool]:
    """Whether anything but the end of the list, or of the text, comes after a comma."""
    mark = yield from reader.copy_mark("]", output.hold)
    return not mark and bool((yield from reader.peek()))

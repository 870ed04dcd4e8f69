"""``[f(a=1, b="x"), g()]``: calls as Python spells them, as Llama 3.2 and 4 and others are asked to write them."""

import re

from gateway.tool_calls.call_list import read_list
from gateway.tool_calls.incremental import IncrementalParser
from gateway.tool_calls.python_arguments import PythonArguments, arguments_json
from gateway.tool_calls.text_reader import SPACE, Parsing

__all__ = ["PythonicParser"]

_NAME = re.compile(r"[-\w.]+")


class PythonicParser(IncrementalParser):
    """Only a text that begins with such a list has calls, and only of the request's tools.

    A call is sent as a whole when its bracket closes: its arguments are Python's until then, and JSON afterwards.
    """

    def parse(self) -> Parsing[None]:
        """The list, then content."""
        yield from read_list(self.reader, self.output, self._read_call)
        yield from self.reader.copy_rest(self.output.text)

    def _read_call(self) -> Parsing[bool]:
        reader, output = self.reader, self.output
        pieces: list[str] = []

        def collect(piece: str) -> None:
            pieces.append(piece)
            output.hold(piece)

        yield from reader.copy_while(SPACE, output.hold)
        yield from reader.copy_while(_NAME, collect)
        name = "".join(pieces)
        if not self._is_name(name) or (yield from reader.peek()) != "(":
            return False
        pieces.clear()
        brackets = PythonArguments()
        while not brackets.has_ended:
            end = brackets.advance(reader.text, reader.position)
            collect(reader.take(end))
            if brackets.is_malformed or not (brackets.has_ended or (yield from reader.peek())):
                return False
        arguments = arguments_json("".join(pieces))
        if arguments is None:
            return False
        output.name(name)
        output.arguments(arguments)
        output.end_call()
        return True

    def _is_name(self, name: str) -> bool:
        return name[:1].isidentifier() and self.is_tool(name)

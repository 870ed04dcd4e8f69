"""What a tool call parser found: content and calls, piece by piece. Knows nothing of how calls are spelled.

The rule for white space (space, tab, CR, LF): what stands next to a call counts only between two pieces of content;
before the first and after the last of the content it is dropped. Without calls, content is the text as it is.
"""

from gateway.tool_calls.parser import ParsedDelta, ToolCallDelta

_SPACE = " \t\r\n"


class ToolCallOutput:
    """Text that may belong to a call is held until the call's name is known: from then on the call is sent.

    If it turns out to be no call, the text that was held is content.
    """

    __slots__ = (
        "_content",
        "_deltas",
        "_has_arguments",
        "_has_content",
        "_held",
        "_held_arguments",
        "_is_in_call",
        "_num_calls",
        "_space",
        "_touches_call",
    )

    def __init__(self) -> None:
        self._content: list[str] = []
        self._deltas: list[tuple[int, str | None, list[str]]] = []
        self._has_content = False
        self._space: list[str] = []  # white space since the last content
        self._touches_call = False  # whether a call stands in or next to that white space
        self._held: list[str] = []
        self._held_arguments: list[str] = []
        self._num_calls = 0
        self._is_in_call = False
        self._has_arguments = False

    def text(self, piece: str) -> None:
        """Content."""
        inked = piece.rstrip(_SPACE)
        if inked:
            leading = "".join(self._space) + inked
            self._content.append(leading.lstrip(_SPACE) if self._touches_call and not self._has_content else leading)
            self._has_content, self._touches_call = True, False
            self._space.clear()
        if len(inked) < len(piece):
            self._space.append(piece[len(inked) :])

    def hold(self, piece: str) -> None:
        """Text around the name and the arguments of a call, or of what may become one."""
        if not self._is_in_call:
            self._held.append(piece)

    def name(self, name: str) -> None:
        """The name that makes a call of what was held."""
        self._deltas.append((self._num_calls, name, self._held_arguments))
        self._has_arguments = bool(self._held_arguments)
        self._held, self._held_arguments = [], []
        self._num_calls += 1
        self._is_in_call = self._touches_call = True

    def arguments(self, piece: str) -> None:
        """More of the arguments; they may come before the name."""
        if not self._is_in_call:
            self._held.append(piece)
            self._held_arguments.append(piece)
            return
        self._has_arguments = True
        index = self._num_calls - 1
        if self._deltas and self._deltas[-1][0] == index:
            self._deltas[-1][2].append(piece)
        else:
            self._deltas.append((index, None, [piece]))

    def end_call(self) -> None:
        """The call is complete; without arguments it has none: ``{}``."""
        if not self._has_arguments:
            self.arguments("{}")
        self._is_in_call = False

    def stop_call(self) -> None:
        """What was read is no call, or not one that goes on: what was sent of it stays, what is held is content."""
        self._is_in_call = False
        held, self._held, self._held_arguments = "".join(self._held), [], []
        self.text(held)

    def drop(self, piece: str) -> None:
        """Text that only says where something ends."""

    def drop_held(self) -> None:
        """What is held was such text."""
        self._held.clear()

    def finish(self) -> None:
        """The text is over."""
        if not self._touches_call:
            self._content.extend(self._space)
        self._space.clear()

    def take(self) -> ParsedDelta:
        """What came since the last time."""
        calls = [ToolCallDelta(index, "".join(pieces), name) for index, name, pieces in self._deltas]
        delta = ParsedDelta("".join(self._content), calls)
        self._content.clear()
        self._deltas.clear()
        return delta

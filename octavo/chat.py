"""``octavo chat``: a small streaming chat in the terminal over the server's OpenAI API.

Owns the conversation and the keys (Ctrl-C stops an answer, Ctrl-D leaves). Talks HTTP only, with the standard
library, so that it also works against other servers.
"""

import sys
from collections.abc import Iterator
from contextlib import closing

from octavo.chat_client import ChatClient, ChatError
from octavo.terminal_text import printable

_HELP = "/reset forgets the conversation, /system TEXT sets the system prompt, /quit or Ctrl-D leaves, Ctrl-C stops"


class Conversation:
    """The messages so far. A turn enters it only with its answer, so a failed one leaves no trace."""

    def __init__(self, system: str | None) -> None:
        self.system = system
        self.turns: list[dict[str, str]] = []

    def messages(self, question: str) -> list[dict[str, str]]:
        """What to send for the next question."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.turns, {"role": "user", "content": question}]

    def add(self, question: str, answer: str) -> None:
        """Keeps a turn; a stopped answer is kept as far as it came."""
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def chat(url: str, *, api_key: str | None = None, model: str | None = None, system: str | None = None) -> int:
    """Reads questions from standard input until its end. Returns the exit status: 1 if the server could not be used
    (or, when the input is no terminal, if any question failed), else 0.
    """
    try:
        client = ChatClient(url, api_key)
        model = model or client.first_model()
    except ChatError as error:
        _complain(str(error))
        return 1
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        # Gives input() line editing and the history of this session.
        import readline  # noqa: F401

        print(f"{model} at {url}. {_HELP}.")
    conversation = Conversation(system)
    num_failed = 0
    for line in _lines(is_terminal):
        if line.startswith("/"):
            if not _obey(line, conversation):
                break
        elif not _answer(client, model, conversation, line):
            num_failed += 1
    return 1 if num_failed and not is_terminal else 0


def _lines(is_terminal: bool) -> Iterator[str]:
    """Non-empty lines of input; at the prompt Ctrl-C only drops the line."""
    while True:
        try:
            line = input("> ") if is_terminal else sys.stdin.readline()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            if not is_terminal:
                return
            print("\n(/quit or Ctrl-D leaves)")
            continue
        if not is_terminal and not line:
            return
        if line.strip():
            yield line.strip()


def _obey(line: str, conversation: Conversation) -> bool:
    """Carries out a command; False: leave."""
    command, _, text = line.partition(" ")
    if command == "/quit":
        return False
    if command == "/reset":
        conversation.turns.clear()
        print("(forgotten)")
    elif command == "/system":
        conversation.system = text.strip() or None
        print("(system prompt set)" if conversation.system else "(no system prompt)")
    else:
        print(f"({_HELP})")
    return True


def _answer(client: ChatClient, model: str, conversation: Conversation, question: str) -> bool:
    """Prints the answer as it comes. False if it failed."""
    parts: list[str] = []
    reason = None
    try:
        with closing(client.stream(model, conversation.messages(question))) as pieces:
            for piece in pieces:
                reason = piece.finish_reason or reason
                parts.append(piece.text)
                print(printable(piece.text), end="", flush=True)
    except KeyboardInterrupt:
        # The connection is closed by now, which tells the server to stop.
        reason = "stopped"
    except ChatError as error:
        if parts:
            print()
        _complain(str(error))
        return False
    print()
    if reason == "length":
        print("(cut: the answer reached its length limit)")
    elif reason not in (None, "stop"):
        print(f"({reason})")
    if text := "".join(parts):
        conversation.add(question, text)
    return True


def _complain(message: str) -> None:
    print(f"octavo chat: {printable(message)}", file=sys.stderr)

"""Text of others on a terminal."""


def printable(text: str) -> str:
    """Without control characters: what a server or a model says must not steer the terminal."""
    return "".join(letter for letter in text if letter in "\n\t" or not (letter < " " or "\x7f" <= letter <= "\x9f"))

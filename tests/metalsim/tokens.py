"""Splits preprocessed Metal source into tokens that keep their place."""

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      |(?P<line>^[ \t]*\#[^\n]*)
      |(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      |(?P<char>'(?:\\.|[^'\\\n])+')
      |(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<punct>\[\[|\]\]|::|->|<<=|>>=|<<|[-+*/%&|^=!<>]=|&&|\|\||\+\+|--|\.\.\.|[^\s\w])
    """,
    re.VERBOSE | re.MULTILINE,
)
_MARKER = re.compile(r'\s*#(?:line)?\s*(\d+)\s+"((?:\\.|[^"\\])*)"')


class SourceError(Exception):
    """Metal source that metalsim does not run: says what, in which file and line."""

    def __init__(self, message: str, file: str, line: int) -> None:
        super().__init__(f"{file}:{line}: {message}")
        self.file = file
        self.line = line


@dataclass
class Token:
    kind: str
    text: str
    start: int
    end: int
    file: str
    line: int

    def error(self, message: str) -> SourceError:
        return SourceError(message, self.file, self.line)


def tokenize(text: str, file: str) -> list[Token]:
    """All tokens but white space and line markers, with the file and line that the markers give."""
    tokens: list[Token] = []
    line, at = 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None and match.end() > at
        kind, piece = str(match.lastgroup), match.group()
        at = match.end()
        marker = _MARKER.match(piece) if kind == "line" else None
        if marker:
            # The newline that ends the marker brings the count to the marker's number.
            line, file = int(marker.group(1)) - 1, marker.group(2)
            continue
        if kind not in ("space", "line"):
            tokens.append(Token(kind, piece, match.start(), at, file, line))
        line += piece.count("\n")
    return tokens


# How far each bracket opens or closes; "]]" may also end two nested subscripts.
_DEPTH = {"(": 1, "[": 1, "{": 1, "[[": 2, ")": -1, "]": -1, "}": -1, "]]": -2}


def closing(tokens: list[Token], at: int) -> int:
    """The index of the token that closes the bracket at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += _DEPTH.get(tokens[i].text, 0)
        if depth == 0:
            return i
    raise tokens[at].error(f"'{tokens[at].text}' is never closed")


def split_commas(tokens: list[Token]) -> list[list[Token]]:
    """The comma-separated parts, with commas inside brackets (also those of template arguments) left alone."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += _DEPTH.get(token.text, 0) + {"<": 1, ">": -1, ">>": -2}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]

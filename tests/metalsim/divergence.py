"""The part of the source pass that lets lanes of a simdgroup part and meet again.

The engine orders lanes by their place in the program: the chain of call sites comes from debug information, and the
passes of the loops round them from `metalsim::Loop` objects that this module puts into the source. Debug information
names a call by its first token, but arguments run before the call they belong to: such calls are listed as late.
"""

import re
from dataclasses import dataclass

from .tokens import Token, closing

# Where lanes meet. Anything that mentions one of these names, directly or through its own functions, may let them meet.
_MEETING = re.compile(r"(simd|quad|simdgroup)_\w+|threadgroup_barrier|thread_elements")
_NOT_FUNCTIONS = {"if", "for", "while", "switch", "decltype", "alignas", "__attribute__", "sizeof", "static_assert"}
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}


@dataclass
class LateCall:
    """A call that starts at one token but takes place at a later one."""

    start: Token
    end: Token


def head_of(tokens: list[Token], brace: int) -> int:
    """The first token of what `{` at `brace` belongs to."""
    at = brace
    while at and tokens[at - 1].text not in (";", "{", "}"):
        at -= 1
    return at


def _function_name(tokens: list[Token], start: int, brace: int) -> str | None:
    """The name of the function whose body begins at `brace`; None for a constructor, an operator, or no name."""
    angle = 0
    for i in range(start, brace):
        text = tokens[i].text
        if text == "operator":
            return None
        before = tokens[i - 1]
        angle += {"<": 1, ">": -1, ">>": -2}.get(text, 0)
        if text == "(" and angle == 0 and before.kind == "name" and before.text not in _NOT_FUNCTIONS:
            plain_type = i - 2 >= start and (tokens[i - 2].kind == "name" or tokens[i - 2].text in ("*", "&", ">"))
            return before.text if plain_type else None
    return None


class Meetings:
    """Which names may let lanes meet, and the edits that follow from it."""

    def __init__(self, tokens: list[Token], bodies: list[bool]) -> None:
        self.tokens = tokens
        self.bodies = bodies
        self.names: set[str] = set()
        # An operation in a lambda, a constructor or an operator is reached without its name: then every loop counts.
        self.anywhere = False
        self._find_names()

    def may_meet(self, first: int, last: int) -> bool:
        return any(self._meets(t) for t in self.tokens[first : last + 1])

    def _meets(self, token: Token) -> bool:
        return token.kind == "name" and (token.text in self.names or _MEETING.fullmatch(token.text) is not None)

    def _find_names(self) -> None:
        functions = []
        for i, token in enumerate(self.tokens):
            if token.text == "{" and self.bodies[i] and (i == 0 or not self.bodies[i - 1]):
                start = head_of(self.tokens, i)
                functions.append((_function_name(self.tokens, start, i), i, closing(self.tokens, i)))
        grown = True
        while grown:
            grown = False
            for name, first, last in functions:
                if name in self.names or not self.may_meet(first, last):
                    continue
                if name is None:
                    self.anywhere = True
                else:
                    self.names.add(name)
                    grown = True
        self.anywhere = self.anywhere or self._unnamed_use()

    def _unnamed_use(self) -> bool:
        for i, token in enumerate(self.tokens):
            if token.text == "[" and self._lambda_body(i) and self.may_meet(*self._lambda_body(i)):  # type: ignore[misc]
                return True
            if token.kind == "name" and token.text in self.names and self.tokens[i + 1].text not in ("(", "<"):
                return True  # handed on as a value or a template's argument
        return False

    def _lambda_body(self, at: int) -> tuple[int, int] | None:
        before = self.tokens[at - 1]
        if not self.bodies[at] or (before.kind in ("name", "number") and before.text != "return"):
            return None
        if before.text in (")", "]", "]]", ">"):
            return None
        end = closing(self.tokens, at) + 1
        while self.tokens[end].text not in ("{", ";", "}"):
            end = closing(self.tokens, end) + 1 if self.tokens[end].text in ("(", "[", "[[") else end + 1
        return (end, closing(self.tokens, end)) if self.tokens[end].text == "{" else None

    def refuse(self) -> None:
        """Where one place in the text stands for several calls, lanes that part cannot be told apart."""
        for i, token in enumerate(self.tokens):
            if token.text == "..." and self.bodies[i]:
                open_ = self._enclosing(i)
                if self.may_meet(open_, closing(self.tokens, open_)):
                    raise token.error("a pack expansion over simdgroup operations is not supported by metalsim")
            if self._meets(token) and not self.bodies[i] and self._is_initial_value(i):
                raise token.error(f"'{token.text}' in a default argument or a member's initial value is not supported")

    def _enclosing(self, at: int) -> int:
        """The bracket that opens the innermost group round a token."""
        depth = 0
        while at > 0:
            at -= 1
            text = self.tokens[at].text
            depth += {")": 1, "]": 1, "}": 1, "]]": 2, "(": -1, "[": -1, "{": -1, "[[": -2}.get(text, 0)
            if depth < 0:
                break
        return at

    def _is_initial_value(self, at: int) -> bool:
        """Outside of functions: whether the name is called after a `=` of the same declaration."""
        before = self.tokens[at - 1]
        if self.tokens[at + 1].text != "(" or before.kind == "name" or before.text == ">":
            return False  # no call, or the name is being declared
        while at > 0 and self.tokens[at].text not in (";", "{", "}", ","):
            if self.tokens[at].text == "=":
                return True
            at -= 1
        return False

    # ---- loops

    def edits(self) -> list[tuple[int, int, str]]:
        """Insertions that put a metalsim::Loop round each loop that needs one and count its passes."""
        opens: list[tuple[int, int, str]] = []
        closes: list[tuple[int, int, str]] = []
        ends_of_do: set[int] = set()
        for i, token in enumerate(self.tokens):
            if token.kind != "name" or not self.bodies[i]:
                continue
            if token.text not in ("for", "while", "do") or i in ends_of_do:
                continue
            end = self.statement_end(i)
            if token.text == "do":
                ends_of_do.add(self.statement_end(i + 1) + 1)
            if not (self.anywhere or self.may_meet(i, end)):
                continue
            name = f"metalsim_loop_{i}"
            # After the token before, so that a pragma stays next to its loop.
            opens.append(_insertion(self.tokens[i - 1].end, f" {{ metalsim::Loop {name};"))
            closes.append(_insertion(self.tokens[end].end, " }"))
            opened, closed = getattr(self, f"_count_{token.text}")(i, f"{name}.next()")
            opens += opened
            closes = closed + closes
        return closes + opens

    def _count_for(self, at: int, step: str) -> tuple[list, list]:
        open_, close = at + 1, closing(self.tokens, at + 1)
        parts, i = [], open_ + 1
        while i < close:
            if self.tokens[i].text == ";":
                parts.append(i)
            i = closing(self.tokens, i) + 1 if self.tokens[i].text in ("(", "[", "{", "[[") else i + 1
        if not parts:  # over a range
            end = self.statement_end(close + 1)
            return [_insertion(self.tokens[close].end, f" {{ {step};")], [_insertion(self.tokens[end].end, " }")]
        first, second = parts
        comma = ", " if second + 1 < close else ""
        counted = [*self._count_condition(first, second, step), _insertion(self.tokens[second].end, f"{step}{comma}")]
        return counted, []

    def _count_while(self, at: int, step: str) -> tuple[list, list]:
        return self._count_condition(at + 1, closing(self.tokens, at + 1), step), []

    def _count_condition(self, before: int, after: int, step: str) -> list:
        tokens = self.tokens[before + 1 : after]
        if not tokens:
            return [_insertion(self.tokens[before].end, step)]
        if len(tokens) > 2 and tokens[0].kind == tokens[1].kind == "name" and tokens[2].text == "=":
            raise tokens[0].error("a declaration as the condition of a loop with simdgroup operations is not supported")
        return [_insertion(self.tokens[before].end, f"{step} && ("), _insertion(self.tokens[after].start, ")")]

    def _count_do(self, at: int, step: str) -> tuple[list, list]:
        end = self.statement_end(at + 1)
        return [_insertion(self.tokens[at].end, f" {{ {step};")], [_insertion(self.tokens[end].end, " }")]

    def statement_end(self, at: int) -> int:
        """The last token of the statement that begins at `at`."""
        text = self.tokens[at].text
        while text == "[[":
            at = closing(self.tokens, at) + 1
            text = self.tokens[at].text
        if text == "{":
            return closing(self.tokens, at)
        if text in ("for", "while", "switch", "if"):
            at += self.tokens[at + 1].text == "constexpr"
            end = self.statement_end(closing(self.tokens, at + 1) + 1)
            if text == "if" and self.tokens[end + 1].text == "else":
                end = self.statement_end(end + 2)
            return end
        if text == "do":
            return closing(self.tokens, self.statement_end(at + 1) + 2) + 1
        while self.tokens[at].text != ";":
            at = closing(self.tokens, at) + 1 if self.tokens[at].text in ("(", "[", "{", "[[") else at + 1
        return at

    # ---- order within expressions

    def late_calls(self) -> list[LateCall]:
        """Calls that run after something that stands behind their first token."""
        late: list[LateCall] = []
        for i, token in enumerate(self.tokens):
            if not self.bodies[i]:
                continue
            if token.text == "(" and self.tokens[i - 1].kind in ("name", "punct") and self._is_call(i):
                end = closing(self.tokens, i)
                if self.anywhere or self.may_meet(i, end):
                    late += [LateCall(self.tokens[s], self.tokens[end]) for s in self._call_starts(i)]
            if token.text in _ASSIGNMENTS:
                late += self._assigned(i)
        return late

    def _is_call(self, open_: int) -> bool:
        before = self.tokens[open_ - 1]
        if before.kind == "name":
            return before.text not in _NOT_FUNCTIONS | {"return"}
        return before.text == ">"

    def _call_starts(self, open_: int) -> list[int]:
        """The tokens by which debug information may name the call: the name, and where its qualifiers begin."""
        at = open_ - 1
        if self.tokens[at].text == ">":
            depth = 0
            while at > 0:
                depth += {">": 1, ">>": 2, "<": -1}.get(self.tokens[at].text, 0)
                if depth == 0:
                    break
                at -= 1
            at -= 1
        starts = [at]
        while self.tokens[at - 1].text in ("::", ".", "->", "template"):
            at -= 1
            if self.tokens[at - 1].kind == "name":
                at -= 1
            starts.append(at)
        return starts

    def _assigned(self, at: int) -> list[LateCall]:
        """The right side of an assignment runs before what stands on its left."""
        start = at
        while self.tokens[start - 1].text not in (";", "{", "}", "("):
            start -= 1
            if self.tokens[start].text in (")", "]"):
                depth = 1
                while depth and start > 0:
                    start -= 1
                    depth += {")": 1, "]": 1, "]]": 2, "(": -1, "[": -1, "[[": -2}.get(self.tokens[start].text, 0)
        if not self.may_meet(start, at):
            return []
        end = at
        while self.tokens[end].text not in (";", ")"):
            end = closing(self.tokens, end) + 1 if self.tokens[end].text in ("(", "[", "{", "[[") else end + 1
        return [LateCall(self.tokens[i], self.tokens[end]) for i in range(start, at) if self.tokens[i].kind == "name"]


def _insertion(at: int, text: str) -> tuple[int, int, str]:
    return at, at, text

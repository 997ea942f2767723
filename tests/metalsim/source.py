"""The source pass: turns preprocessed Metal into C++ for clang, keeping every line where it is."""

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from .divergence import LateCall, Meetings
from .language import BINDINGS, FORBIDDEN, HARMLESS, MAX_THREADS, POSITIONS, UNSUPPORTED
from .tokens import SourceError, Token, closing, split_commas, tokenize

_NUMBER = r"[\d\s+*()-]+"
_SCALAR = re.compile(r"u?(char|short|int|long)|u?int\d+_t|bool|float|void|size_t|ptrdiff_t")
# What may stand before a parenthesis in the head of a class.
_NO_FUNCTIONS = {"alignas", "__attribute__", "decltype", "packed", "aligned", "__declspec"}

_FLOAT = re.compile(r"(?:\d[\d']*\.?[\d']*|\.\d[\d']*)(?:[eE][+-]?\d+)?|0[xX][\da-fA-F]*\.?[\da-fA-F]*[pP][+-]?\d+")


@dataclass
class Parameter:
    """What a kernel's parameter binds: a buffer, threadgroup memory or a position."""

    kind: str
    index: int = -1
    constant: bool = False
    read_only: bool = False
    conditional: bool = False  # there only with some function constant


@dataclass
class FunctionConstant:
    name: str
    type: str


@dataclass
class KernelInfo:
    name: str
    parameters: list[Parameter]
    file: str
    line: int
    max_threads: int = MAX_THREADS  # of a threadgroup; [[max_total_threads_per_threadgroup(n)]] lowers it


@dataclass
class Program:
    """The C++ text and what the pass learned of it."""

    text: str = ""
    kernels: dict[str, KernelInfo] = field(default_factory=dict)
    constants: list[FunctionConstant] = field(default_factory=list)


@dataclass
class Definition:
    sources: list[str]
    parameters: list[Parameter]
    token: Token
    end: int
    max_threads: int


class Pass:
    """One translation. Edits are collected on the original text and applied in one go."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.tokens = tokenize(text, file)
        self.edits: list[tuple[int, int, str]] = []
        self.consumed: set[int] = set()  # indices of `[[` that a construct has handled
        self.definitions: dict[str, list[Definition]] = {}
        self.constants: set[str] = set()
        self.program = Program()
        self.function_bodies = self._function_bodies()

    def run(self) -> Program:
        self._refuse()
        self._function_constants()
        self._derived_constants()
        self._kernels()
        self._threadgroup_variables()
        self._other_attributes()
        self._literals()
        self.program.text = self._let_lanes_meet()
        return self.program

    def _casts(self) -> None:
        """clang has no cast between half and bfloat."""
        for i, token in enumerate(self.tokens):
            target = self.tokens[i + 2] if token.text == "static_cast" else None
            if (
                target
                and target.kind == "name"
                and self.tokens[i + 3].text == ">"
                and not _SCALAR.fullmatch(target.text)
            ):
                self._replace(token, token, "::metal::cast")

    def _let_lanes_meet(self) -> str:
        self._casts()
        meetings = Meetings(self.tokens, self.function_bodies)
        meetings.refuse()
        self.edits += meetings.edits()
        return self._apply() + self._late_table(meetings.late_calls())

    # ---- helpers

    def _replace(self, first: Token, last: Token, text: str) -> None:
        newlines = self.text[first.start : last.end].count("\n")
        self.edits.append((first.start, last.end, text + "\n" * newlines))

    def _insert(self, at: int, text: str) -> None:
        self.edits.append((at, at, text))

    def _blank(self, first: int, last: int) -> None:
        """Takes tokens out, but leaves line markers between them."""
        for token in self.tokens[first : last + 1]:
            self.edits.append((token.start, token.end, " "))

    def _apply(self) -> str:
        pieces, at = [], 0
        for start, end, text in sorted(self.edits, key=lambda e: (e[0], e[1])):
            assert start >= at, self.text[start - 40 : end + 40]
            pieces += [self.text[at:start], text]
            at = end
        return "".join([*pieces, self.text[at:]])

    def _late_table(self, calls: list[LateCall]) -> str:
        """The late calls by their columns in the C++ text, where edits have moved them."""
        if not calls:
            return ""
        edits = sorted(self.edits, key=lambda e: (e[0], e[1]))
        starts = [start for start, _, _ in edits]
        moved = [0, *accumulate(len(text) - (end - start) for start, end, text in edits)]
        text = self._apply()

        def column(token: Token) -> int:
            at = token.start + moved[bisect_right(starts, token.start)]
            return at - text.rfind("\n", 0, at)

        rows = {
            (Path(c.start.file).name, c.start.line, column(c.start)): (c.end.line, column(c.end))
            for c in sorted(calls, key=lambda c: c.end.start)  # the latest place wins
        }
        entries = ", ".join(f'{{"{f}", {line}, {col}, {l2}, {c2}}}' for (f, line, col), (l2, c2) in rows.items())
        return (
            f"\nstatic const metalsim::LateCall metalsim_late_table[] = {{{entries}}}; "
            f"static metalsim::RegisterLateCalls metalsim_late(metalsim_late_table);\n"
        )

    def _source(self, tokens: list[Token]) -> str:
        return " ".join(token.text for token in tokens)

    def _function_bodies(self) -> list[bool]:
        """For every token, whether it lies in a function's body."""
        inside: list[bool] = []
        stack: list[bool] = []
        since = 0
        for i, token in enumerate(self.tokens):
            if token.text == "{":
                stack.append((bool(stack) and stack[-1]) or self._heads_function(since, i))
            inside.append(bool(stack) and stack[-1])
            if token.text == "}" and stack:
                stack.pop()
            if token.text in ("{", "}", ";"):
                since = i + 1
        return inside

    def _heads_function(self, start: int, brace: int) -> bool:
        """Whether what ends in `{` at `brace` is a function's head, rather than a class's or an initialiser's."""
        if self.tokens[brace - 1].text == "=":
            return False
        for i in range(start, brace):
            text, before = self.tokens[i].text, self.tokens[i - 1]
            if text == "operator" or (text == "(" and before.kind == "name" and before.text not in _NO_FUNCTIONS):
                return True
        return False

    # ---- constructs

    def _refuse(self) -> None:
        for i, token in enumerate(self.tokens):
            if token.kind != "name":
                continue
            before = self.tokens[i - 1].text if i else ""
            if token.text in FORBIDDEN and before not in (".", "->", "::", "="):
                raise token.error(FORBIDDEN[token.text])
            following = self.tokens[i + 1].text if i + 1 < len(self.tokens) else ""
            if UNSUPPORTED.fullmatch(token.text) and following in ("<", "::") and before not in (".", "->"):
                raise token.error(f"'{token.text}' is not supported by metalsim")
            if token.text == "static" and self.function_bodies[i]:
                statement = {t.text for t in self.tokens[max(0, i - 3) : i + 4]}
                if not statement & {"constant", "constexpr"}:
                    raise token.error("Metal has no static local variables")

    def _attribute(self, at: int, name: str) -> list[Token] | None:
        """The arguments of attribute `name` in the `[[` at `at`, or None."""
        end = closing(self.tokens, at)
        for part in split_commas(self.tokens[at + 1 : end]):
            if part[0].text == name:
                return part[2:-1] if len(part) > 1 else []
        return None

    def _function_constants(self) -> None:
        for i, token in enumerate(self.tokens):
            if token.text != "constant" or i + 4 >= len(self.tokens):
                continue
            at = i + 1
            while self.tokens[at].kind == "name" or self.tokens[at].text == "::":
                at += 1
            if self.tokens[at].text != "[[" or self._attribute(at, "function_constant") is None:
                continue
            end = closing(self.tokens, at)
            if self.tokens[end + 1].text != ";":
                raise token.error("a function constant has no initial value")
            index = self._source(self._attribute(at, "function_constant") or [])
            kind, name = self._source(self.tokens[i + 1 : at - 1]), self.tokens[at - 1].text
            self.consumed.add(at)
            self.constants.add(name)
            self.program.constants.append(FunctionConstant(name, kind))
            self._replace(token, self.tokens[end + 1], self._declare_constant(kind, name, index))

    def _declare_constant(self, kind: str, name: str, index: str) -> str:
        return (
            f"inline {kind} {name}; inline bool {name}_defined; static metalsim::RegisterConstant "
            f'{name}_record({index}, "{name}", &{name}, sizeof({name}), &{name}_defined);'
        )

    def _derived_constants(self) -> None:
        """Constants computed from function constants are computed anew whenever those are set."""
        for i, token in enumerate(self.tokens):
            if token.text == "is_function_constant_defined":
                if i and self.tokens[i - 1].text == "::":
                    self._blank(i - 2, i - 1)
                self._blank(i, i)
                name = self.tokens[i + 2]
                if name.text not in self.constants:
                    raise name.error(f"'{name.text}' is no function constant")
        i = 0
        while self.constants and i < len(self.tokens):
            if self.tokens[i].text == "constant" and not self.function_bodies[i]:
                i = self._derived_constant(i)
            i += 1
        for i, token in enumerate(self.tokens):
            if token.text == "is_function_constant_defined":
                self._insert(self.tokens[i + 2].end, "_defined")

    def _derived_constant(self, at: int) -> int:
        end = at
        while self.tokens[end].text not in (";", "{", ")"):
            end += 1
        texts = [t.text for t in self.tokens[at:end]]
        if self.tokens[end].text == "(" or "=" not in texts:
            return at
        while self.tokens[end].text != ";":
            end += 1
        equal = at + texts.index("=")
        expression = self.tokens[equal + 1 : end]
        if not {t.text for t in expression} & self.constants:
            return at
        name = self.tokens[equal - 1]
        kind = [t for t in self.tokens[at + 1 : equal - 1] if t.text not in ("constexpr", "const", "static")]
        if name.kind != "name":
            raise name.error("a derived constant must be a scalar")
        self.constants.add(name.text)
        value = self._with_defined(expression)
        first = at
        while first and self.tokens[first - 1].text in ("static", "const", "constexpr"):
            first -= 1
        self.edits = [e for e in self.edits if not self.tokens[first].start <= e[0] < self.tokens[end].end]
        self._drop_defined(at, end)
        self._replace_derived(first, end, self._source(kind), name.text, value)
        return end

    def _replace_derived(self, first: int, end: int, kind: str, name: str, value: str) -> None:
        text = f"inline {kind} {name}; static metalsim::RegisterConstant {name}_record([] {{ {name} = ({value}); }});"
        self._replace(self.tokens[first], self.tokens[end], text)

    def _with_defined(self, tokens: list[Token]) -> str:
        text = self._source(tokens)
        return re.sub(r"\bis_function_constant_defined \( (\w+) \)", r"\1_defined", text)

    def _drop_defined(self, first: int, last: int) -> None:
        for token in self.tokens[first:last]:
            if token.text == "is_function_constant_defined":
                token.text = "(handled)"
            if token.kind == "number":
                token.kind = "handled"

    # ---- kernels

    def _kernels(self) -> None:
        i = 0
        while i < len(self.tokens):
            token = self.tokens[i]
            attribute = token.text == "[[" and self._attribute(i, "kernel") is not None
            if attribute or (token.text == "kernel" and token.kind == "name"):
                start, host = self._head(i)
                if attribute:
                    self._limit_threads(i)
                    self.consumed.add(i)
                    self._blank(i, closing(self.tokens, i))
                    i = closing(self.tokens, i)
                else:
                    self._blank(i, i)
                i = self._kernel(i + 1, start, host)
            i += 1

    def _head(self, at: int) -> tuple[str, str | None]:
        """What stands before `kernel`: 'template' for an instantiation, '<' for a template, and the host name."""
        host = None
        at -= 1
        self.max_threads = MAX_THREADS
        while at >= 0 and self.tokens[at].text == "]]":
            start = at
            while self.tokens[start].text != "[[":
                start -= 1
            self._limit_threads(start)
            names = self._attribute(start, "host_name")
            if names is not None:
                host = "".join(t.text[1:-1] for t in names if t.kind == "string")
                self.consumed.add(start)
                self._blank(start, at)
            at = start - 1
        return (self.tokens[at].text if at >= 0 else ""), host

    def _limit_threads(self, at: int) -> None:
        given = self._attribute(at, "max_total_threads_per_threadgroup")
        text = self._source(given or [])
        if re.fullmatch(_NUMBER, text):  # one that depends on a template's parameters is left alone
            self.max_threads = min(self._index(given), MAX_THREADS)

    def _kernel(self, at: int, before: str, host: str | None) -> int:
        while self.tokens[at].text == "[[":
            self._limit_threads(at)
            names = self._attribute(at, "host_name")
            if names is not None:
                host = "".join(t.text[1:-1] for t in names if t.kind == "string")
                self.consumed.add(at)
                self._blank(at, closing(self.tokens, at))
            at = closing(self.tokens, at) + 1
        if before == "template":
            return self._instantiation(at, host)
        return self._definition(at, before, host)

    def _definition(self, at: int, before: str, host: str | None) -> int:
        open_ = at
        while self.tokens[open_].text != "(":
            open_ += 1
        name = self.tokens[open_ - 1]
        close = closing(self.tokens, open_)
        if self.tokens[close + 1].text != "{":
            return close
        end = closing(self.tokens, close + 1)
        parameters = [self._parameter(p) for p in self._parameters(open_, close)]
        definition = Definition([s for s, _ in parameters], [p for _, p in parameters], name, end, self.max_threads)
        self._number_buffers(definition)
        self.definitions.setdefault(name.text, []).append(definition)
        if before != ">":
            self._register(host or name.text, name.text, definition, self.tokens[end].end)
        return close

    def _parameters(self, open_: int, close: int) -> list[list[Token]]:
        return split_commas(self.tokens[open_ + 1 : close])

    def _parameter(self, tokens: list[Token]) -> tuple[str, Parameter]:
        attributes: dict[str, list[Token]] = {}
        declaration: list[Token] = []
        i = 0
        while i < len(tokens):
            if tokens[i].text == "[[":
                end = closing(tokens, i)
                for part in split_commas(tokens[i + 1 : end]):
                    attributes[part[0].text] = part[2:-1]
                at = self.tokens.index(tokens[i])
                self.consumed.add(at)
                self._blank(at, closing(self.tokens, at))
                i = end
            else:
                declaration.append(tokens[i])
            i += 1
        return self._bind(tokens[0], declaration, attributes)

    def _bind(
        self, where: Token, declaration: list[Token], attributes: dict[str, list[Token]]
    ) -> tuple[str, Parameter]:
        words = [t.text for t in declaration]
        for name in attributes:
            if name not in POSITIONS | BINDINGS | HARMLESS:
                raise where.error(f"attribute [[{name}]] is not supported by metalsim")
        position = next((name for name in attributes if name in POSITIONS), None)
        if position:
            return f"metalsim::{position}", Parameter("position")
        condition = "".join(f", &{t.text}" for t in attributes.get("function_constant", []))
        if "*" not in words and "&" not in words:
            raise where.error(f"cannot bind the parameter '{' '.join(words)}': it needs an attribute, or is no pointer")
        if "threadgroup" in words or "threadgroup" in attributes:
            index = self._index(attributes.get("threadgroup"))
            return f"metalsim::Threadgroup<%d{condition}>", Parameter("threadgroup", index, conditional=bool(condition))
        target = words[: max(i for i, w in enumerate(words) if w in ("*", "&"))]
        constant = "constant" in words
        index = self._index(attributes.get("buffer"))
        parameter = Parameter("buffer", index, constant, constant or "const" in target, bool(condition))
        return f"metalsim::Buffer<%d{condition}>", parameter

    def _index(self, tokens: list[Token] | None) -> int:
        if not tokens:
            return -1
        text = self._source(tokens)
        if not re.fullmatch(_NUMBER, text):
            raise tokens[0].error(f"the index '{text}' is no number")
        return int(eval(text, {"__builtins__": {}}))

    def _number_buffers(self, definition: Definition) -> None:
        """Parameters without an index get the lowest that is free, as in Metal."""
        for kind in ("buffer", "threadgroup"):
            used = {p.index for p in definition.parameters if p.kind == kind}
            for i, parameter in enumerate(definition.parameters):
                if parameter.kind != kind:
                    continue
                if parameter.index < 0:
                    parameter.index = next(n for n in range(100) if n not in used)
                    used.add(parameter.index)
                if parameter.index > 30:
                    raise definition.token.error(f"{kind} index {parameter.index} is above 30")
                definition.sources[i] = definition.sources[i].replace("%d", str(parameter.index))

    def _instantiation(self, at: int, host: str | None) -> int:
        end = at
        while self.tokens[end].text != ";":
            end += 1
        last = end
        if self.tokens[last - 1].text == ")":
            depth = 0
            while True:
                last -= 1
                depth += (self.tokens[last].text == ")") - (self.tokens[last].text == "(")
                if depth == 0:
                    break
        # decltype(f<...>) f<...>: the declarator is the last name before its template arguments.
        depth, start = 0, last - 1
        while start > at:
            depth += {">": 1, "<": -1}.get(self.tokens[start].text, 0)
            if self.tokens[start].text == ">>":
                depth += 2
            if depth == 0:
                break
            start -= 1
        start -= 1
        name = self.tokens[start].text
        while self.tokens[start - 1].text == "::":
            start -= 1 if self.tokens[start - 2].text == "void" else 2
        if name not in self.definitions:
            raise self.tokens[start].error(f"instantiates '{name}', which is no kernel template defined above")
        for i in range(at, end):
            if self.tokens[i].text == "[[":
                self.consumed.add(i)
                self._blank(i, closing(self.tokens, i))
        entry = self._source(self.tokens[start:last])
        definition = self.definitions[name][-1]
        self._register(host or name, entry, definition, self.tokens[end].end)
        return end

    def _register(self, host: str, entry: str, definition: Definition, at: int) -> None:
        if host in self.program.kernels:
            raise definition.token.error(f"two kernels are called '{host}'")
        token = definition.token
        self.program.kernels[host] = KernelInfo(
            host, definition.parameters, token.file, token.line, definition.max_threads
        )
        number = len(self.program.kernels)
        sources = "".join(f", {source}" for source in definition.sources)
        self._insert(
            at,
            f' static metalsim::RegisterKernel metalsim_kernel_{number}("{host}", '
            f"metalsim::Entry<({entry}){sources}>());",
        )

    # ---- inside functions

    def _threadgroup_variables(self) -> None:
        for i, token in enumerate(self.tokens):
            if token.text != "threadgroup" or not self.function_bodies[i]:
                continue
            start = i
            while self.tokens[start - 1].text in ("const", "volatile", "static"):
                start -= 1
            if self.tokens[start - 1].text not in (";", "{", "}", ")"):
                continue
            end = i
            while self.tokens[end].text not in (";", "=", "(", "{"):
                end += 1
            texts = [t.text for t in self.tokens[i:end]]
            if "*" in texts or "&" in texts or "[[" in texts:
                if self.tokens[end].text != ";" or "[" not in texts:
                    continue
                raise token.error("an array of pointers in threadgroup memory is not supported by metalsim")
            if self.tokens[end].text != ";":
                raise token.error("this threadgroup declaration is not supported by metalsim")
            self._declare_variables(start, i, end)

    def _declare_variables(self, start: int, at: int, end: int) -> None:
        name = at + 1
        depth = 0
        while depth or self.tokens[name + 1].text not in ("[", ";", ","):
            depth += {"<": 1, ">": -1, ">>": -2}.get(self.tokens[name].text, 0)
            name += 1
        kind = self._source(self.tokens[at + 1 : name])
        text = ""
        for part in split_commas(self.tokens[name:end]):
            variable, dimensions = part[0].text, self._source(part[1:])
            text += self._place_variable(variable, f"{kind}{dimensions}")
        for token in self.tokens[start : end + 1]:
            if token.kind == "number":
                token.kind = "handled"
        self._replace(self.tokens[start], self.tokens[end], text)

    def _place_variable(self, name: str, kind: str) -> str:
        return (
            f"using {name}_type = {kind}; static metalsim::ThreadgroupSlot {name}_slot; "
            f"auto& {name} = metalsim::threadgroup_variable<{name}_type>({name}_slot); "
        )

    def _other_attributes(self) -> None:
        for i, token in enumerate(self.tokens):
            if token.text != "[[" or i in self.consumed:
                continue
            end = closing(self.tokens, i)
            if end - i > 1 and self.tokens[i + 1].kind == "name":
                for part in split_commas(self.tokens[i + 1 : end]):
                    if part[0].text not in HARMLESS:
                        raise token.error(f"attribute [[{part[0].text}]] is not supported by metalsim here")
                self._blank(i, end)

    def _literals(self) -> None:
        """Unsuffixed floating literals are float in Metal; h and bf suffixes name half and bfloat."""
        for token in self.tokens:
            if token.kind != "number":
                continue
            text = token.text
            number = _FLOAT.match(text)
            if not number or (text[:2].lower() == "0x" and "p" not in text.lower()):
                continue
            suffix = text[number.end() :].lower()
            floating = any(c in number.group() for c in ".") or "e" in number.group().lower()
            floating = floating or "p" in number.group().lower()
            replacement = self._literal(number.group(), suffix, floating)
            if replacement:
                self._replace(token, token, replacement)

    def _literal(self, number: str, suffix: str, floating: bool) -> str | None:
        if suffix == "" and floating:
            return f"{number}f"
        if suffix == "h":
            # From the decimal number in one rounding.
            return f"((half){number}L)"
        if suffix == "bf":
            return f"((bfloat){number})"
        return None


def translate(text: str, file: str) -> Program:
    """Translates preprocessed Metal. Raises SourceError for what metalsim does not run."""
    return Pass(text, file).run()


__all__ = ["KernelInfo", "Parameter", "Program", "SourceError", "translate"]

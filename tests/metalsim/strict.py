"""Strict mode: what Apple's compiler refuses is refused, with construct, file and line.

Three looks at the source: its tokens (a pointer or reference without an address space, pointers to functions), clang's
C++ for OpenCL with the address spaces mapped to OpenCL's (mixing them, writing to constant, implicit conversions to
bfloat), and the call graph of the code that clang makes (recursion).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import build
from .source import Definition, Pass
from .tokens import SourceError, closing

SPACES = {"device", "constant", "threadgroup", "thread", "threadgroup_imageblock", "object_data", "ray_data"}
_TYPE_WORDS = {
    "const",
    "volatile",
    "struct",
    "class",
    "typename",
    "unsigned",
    "signed",
    "static",
    "constexpr",
    "inline",
}
_NOT_TYPES = {"return", "case", "else", "sizeof", "operator", "using", "goto", "delete", "do", "if", "while", "in"}
_BRACKETS = {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1, ">>": -2}
# What a declaration may follow.
_STARTS = {";", "{", "}", "(", ",", ":", ">", "]]", "public", "private"}

# Plain names in Metal, keywords in OpenCL.
OPENCL_KEYWORDS = {"local", "global", "generic", "pipe", "read_only", "write_only", "read_write", "event_t", "queue_t"}
OPENCL = [
    "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-fdeclspec", "-fsyntax-only", "-Wno-everything",
    "-Xclang", "-cl-ext=+cl_khr_fp16,+__cl_clang_function_pointers", "-ftemplate-depth=2048",
    "-D__METAL__=1", f"-D__METAL_VERSION__={build.MSL_VERSION}",
]  # fmt: skip


class _StrictPass(Pass):
    """The source pass for clang's C++ for OpenCL: it binds and registers nothing, and runs nothing."""

    def _declare_constant(self, kind: str, name: str, index: str) -> str:
        return f"constant {kind} {name} = {kind}(); constant bool {name}_defined = false;"

    def _replace_derived(self, first: int, end: int, kind: str, name: str, value: str) -> None:
        text = f"constant {kind} {name} = {kind}(); inline void {name}_check() {{ {kind} value = ({value}); }}"
        self._replace(self.tokens[first], self.tokens[end], text)

    def _register(self, host: str, entry: str, definition: Definition, at: int) -> None:
        pass

    def _place_variable(self, name: str, kind: str) -> str:
        return f"using {name}_type = {kind}; threadgroup {name}_type& {name} = *(threadgroup {name}_type*)0; "

    def _literal(self, number: str, suffix: str, floating: bool) -> str | None:
        if suffix in ("h", "bf"):
            return f"(({'half' if suffix == 'h' else 'bfloat'}){number}f)"
        return super()._literal(number, suffix, floating)

    def _let_lanes_meet(self) -> str:
        self._rename_keywords()
        self._array_parameters()
        self._address_spaces()
        self._function_pointers()
        return self._apply()

    # ---- tokens

    def _rename_keywords(self) -> None:
        for token in self.tokens:
            if token.kind == "name" and token.text in OPENCL_KEYWORDS:
                self._replace(token, token, f"{token.text}_")

    def _array_parameters(self) -> None:
        """An array parameter without an address space points to thread memory, which OpenCL mode must be told."""
        for i, token in enumerate(self.tokens):
            if token.text != "[" or self.function_bodies[i] or self.tokens[i - 1].kind != "name":
                continue
            following = self.tokens[closing(self.tokens, i) + 1].text
            start = self._type_start(i - 1)
            if following not in (",", ")") or start is None or self.tokens[start - 1].text not in ("(", ","):
                continue
            if not SPACES & {t.text for t in self.tokens[start:i]}:
                self._insert(self.tokens[start].start, "thread ")

    def _address_spaces(self) -> None:
        for i, token in enumerate(self.tokens):
            if token.text in ("*", "&") and token.kind == "punct" and i + 1 < len(self.tokens):
                start = self._declared_type(i)
                if start is not None and not SPACES & {t.text for t in self.tokens[start:i]}:
                    what = "pointer" if token.text == "*" else "reference"
                    words = " ".join(t.text for t in self.tokens[start : i + 2])
                    raise token.error(f"{what} type must have an explicit address space qualifier: '{words}'")

    def _declared_type(self, at: int) -> int | None:
        """Where the type begins whose `*` or `&` stands at `at`; None where that is an operator."""
        start = self._type_start(at)
        if start is None:
            return None
        following = self.tokens[at + 1]
        if following.text in (")", ">", ",", ";", "*", "&", "..."):
            return start
        if following.kind != "name":
            return None
        before = self.tokens[start - 1].text if start else ";"
        if before in ("*", "&"):
            return start if self._declared_type(start - 1) is not None else None
        if not self.function_bodies[at]:
            return start if before in _STARTS | {"<"} else None
        if before in (";", "{", "}", "]]"):
            return start
        return start if before in ("(", ",") and self._in_declaration(start - 1) else None

    def _type_start(self, at: int) -> int | None:
        """The first of the tokens before `at` that form a type (back to the last `*` or `&`)."""
        i, named = at - 1, False
        while i >= 0:
            token = self.tokens[i]
            if token.text == ">":
                i = self._open_angle(i)
                if i is None:
                    return None
            elif token.text == "]]":
                break
            elif token.kind == "name" and token.text not in _NOT_TYPES:
                named = named or token.text not in SPACES | {"const", "volatile"}
                if token.text == "auto":
                    return None
            elif token.text != "::":
                break
            i -= 1
        texts = {t.text for t in self.tokens[i + 1 : at]}
        again = i >= 0 and self.tokens[i].text in ("*", "&") and self._declared_type(i) is not None
        return i + 1 if (named and texts - _TYPE_WORDS - SPACES) or again else None

    def _open_angle(self, at: int) -> int | None:
        depth = 0
        while at >= 0 and self.tokens[at].text not in (";", "{", "}"):
            depth += {">": 1, ">>": 2, "<": -1}.get(self.tokens[at].text, 0)
            if depth == 0:
                return at
            at -= 1
        return None

    def _in_declaration(self, at: int) -> bool:
        """Whether the parenthesis round `at`, inside a function, holds declarations: a for's or a lambda's."""
        depth = 0
        while at >= 0:
            text = self.tokens[at].text
            depth += {")": 1, "(": -1}.get(text, 0)
            if depth < 0 or text in ("{", "}"):
                return text == "(" and self.tokens[at - 1].text in ("for", "]")
            if text == ";" and depth == 0:
                return False
            at -= 1
        return False

    def _function_pointers(self) -> None:
        """Variables, members and types that point to functions; as a parameter or a template's argument Metal, which
        inlines everything, takes them."""
        functions = {
            self.tokens[i - 1].text
            for i, token in enumerate(self.tokens)
            if token.text == "(" and not self.function_bodies[i] and self._ends_in_body(closing(self.tokens, i))
        }
        depth = 0
        for i, token in enumerate(self.tokens):
            depth = 0 if token.text in ("{", "}", ";", "template") else depth + _BRACKETS.get(token.text, 0)
            pointer = self.tokens[i : i + 2] and [t.text for t in self.tokens[i : i + 2]] == ["(", "*"]
            if pointer and self._in_template_head(i):
                # The OpenCL mode takes references to functions as a template's arguments, but no pointers.
                self._replace(self.tokens[i + 1], self.tokens[i + 1], "&")
            elif pointer and depth == 1 and self._type_start(i) is not None:
                close = closing(self.tokens, i)
                if close <= i + 3 and self.tokens[close + 1].text == "(":
                    raise token.error(
                        f"Metal has no pointers to functions: '{self._source(self.tokens[i : close + 1])}'"
                    )
            if token.text == "=" and self.function_bodies[i]:
                named = self.tokens[i + 1 + (self.tokens[i + 1].text == "&")]
                after = self.tokens[i + 2 + (self.tokens[i + 1].text == "&")]
                if named.text in functions and after.text in (";", ","):
                    raise named.error(f"Metal has no pointers to functions: '{named.text}'")

    def _in_template_head(self, at: int) -> bool:
        depth = 0
        while at > 0 and self.tokens[at].text not in ("{", "}", ";"):
            at -= 1
            depth += {"<": 1, ">": -1, ">>": -2}.get(self.tokens[at].text, 0)
            if depth > 0 and self.tokens[at - 1].text == "template":
                return True
        return False

    def _ends_in_body(self, close: int) -> bool:
        return close + 1 < len(self.tokens) and self.tokens[close + 1].text == "{"


# ---- recursion


_DEFINE = re.compile(r'^define .*?@("[^"]+"|[\w.$]+)\(.*!dbg !(\d+)')
_CALL = re.compile(r'\b(?:call|invoke)\b[^@]*@("[^"]+"|[\w.$]+)\(')
_SUBPROGRAM = re.compile(r'^!(\d+) = distinct !DISubprogram\(name: "([^"]*)".*?file: !(\d+), line: (\d+)')
_FILE = re.compile(r'^!(\d+) = !DIFile\(filename: "([^"]*)"')


def _call_graph(code: str) -> tuple[dict[str, set[str]], dict[str, tuple[str, str, int]]]:
    """Who calls whom in LLVM's text, and each function's name, file and line."""
    calls: dict[str, set[str]] = {}
    debug: dict[str, str] = {}
    current: set[str] = set()
    for line in code.splitlines():
        define = _DEFINE.match(line)
        if define:
            debug[define[1]] = define[2]
            current = calls.setdefault(define[1], set())
        elif line.startswith(" ") and (call := _CALL.search(line)):
            current.add(call[1])
    files = {m[1]: m[2] for m in map(_FILE.match, code.splitlines()) if m}
    programs = {m[1]: (m[2], files.get(m[3], "?"), int(m[4])) for m in map(_SUBPROGRAM.match, code.splitlines()) if m}
    return calls, {name: programs[number] for name, number in debug.items() if number in programs}


def _recursive(calls: dict[str, set[str]]) -> str | None:
    """A function that reaches itself."""
    for name in calls:
        seen: set[str] = set()
        left = list(calls[name])
        while left:
            callee = left.pop()
            if callee == name:
                return name
            if callee in calls and callee not in seen:
                seen.add(callee)
                left += calls[callee]
    return None


def _refuse_recursion(text: str, file: str) -> None:
    code = build.intermediate_code(f"#include <metal_stdlib>\n{text}")
    calls, places = _call_graph(code)
    own = {name: callees for name, callees in calls.items() if name in places}
    name = _recursive(own)
    if name:
        function, where, line = places[name]
        raise SourceError(f"Metal has no recursion: '{function}' calls itself, directly or through others", where, line)


# ---- the front


def strict(
    source: Path | str,
    include_dirs: Sequence[Path | str] = (),
    defines: Mapping[str, str] | None = None,
    recursion: bool = False,
) -> None:
    """Raises SourceError or CompileError where Apple's compiler would refuse the source.

    recursion: let functions call themselves, as some of torch's do.
    """
    text, file = build.preprocess(
        source, include_dirs, [f"-D{name}={value}" for name, value in (defines or {}).items()]
    )
    program = build.translate(text, file)

    def check(out: Path) -> None:
        opencl = _StrictPass(text, file).run().text
        folders = [f"-isystem{folder}" for folder in (build.HERE / "strict", build.HERE / "shim")]
        generated = f"-isystem{build.include_folder() / 'generated'}"
        build.run([build.CLANG, *OPENCL, *folders, generated, "-"], text=f"#include <metal_stdlib>\n{opencl}")
        if not recursion:
            _refuse_recursion(program.text, file)
        out.touch()

    key = build.shader_tools() + build.contents(build.HERE / "strict", build.HERE / "strict.py")
    build.cached("strict", ".ok", f"{key}\n{recursion}\n{text}", check)


__all__ = ["strict"]

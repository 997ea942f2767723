"""Random structured programs over one simdgroup: as Metal source, and run by a model of lanes that part and meet again.

The model is a processor with an execution mask: a branch runs its sides one after the other, each with its lanes; a
loop runs while any lane stays in it; lanes that break, continue or return wait where the construct ends.
"""

import random
from dataclasses import dataclass, field

import numpy as np

LANES = 32
Mask = np.ndarray


@dataclass
class State:
    """The variables of all lanes, and the lanes that wait at the ends of the constructs round this place."""

    values: dict[str, np.ndarray]
    lane: np.ndarray
    breaking: Mask = field(default_factory=lambda: np.zeros(LANES, bool))
    continuing: Mask = field(default_factory=lambda: np.zeros(LANES, bool))
    returning: Mask = field(default_factory=lambda: np.zeros(LANES, bool))


class Node:
    """An expression (`evaluate` gives each lane's value) or a statement (`run` gives the lanes that go on)."""

    def text(self) -> str:
        raise NotImplementedError

    def evaluate(self, state: State, mask: Mask) -> np.ndarray:
        raise NotImplementedError

    def run(self, state: State, mask: Mask) -> Mask:
        raise NotImplementedError


# ---- expressions


@dataclass
class Simple(Node):
    """An expression without operations, the same text for Metal and for numpy."""

    source: str

    def text(self) -> str:
        return self.source

    def evaluate(self, state: State, mask: Mask) -> np.ndarray:
        value = eval(self.source.replace("u", ""), {"lane": state.lane, **state.values})
        return np.broadcast_to(np.asarray(value), LANES).astype(np.uint32)


@dataclass
class Operation(Node):
    name: str
    argument: Node

    def text(self) -> str:
        return f"simd_{self.name}(uint({self.argument.text()}))"

    def evaluate(self, state: State, mask: Mask) -> np.ndarray:
        active = self.argument.evaluate(state, mask)[mask]
        if self.name == "prefix_inclusive_sum":
            result = np.zeros(LANES, np.uint32)
            result[mask] = np.cumsum(active, dtype=np.uint32)
            return result
        reduced = {"sum": lambda v: v.sum(dtype=np.uint32), "max": np.max, "broadcast_first": lambda v: v[0]}[self.name]
        return np.full(LANES, reduced(active) if len(active) else 0, np.uint32)


@dataclass
class Choice(Node):
    condition: Node
    yes: Node
    no: Node

    def text(self) -> str:
        return f"(({self.condition.text()}) ? {self.yes.text()} : {self.no.text()})"

    def evaluate(self, state: State, mask: Mask) -> np.ndarray:
        chosen = self.condition.evaluate(state, mask) != 0
        yes = self.yes.evaluate(state, mask & chosen) if (mask & chosen).any() else 0
        no = self.no.evaluate(state, mask & ~chosen) if (mask & ~chosen).any() else 0
        return np.where(chosen, yes, no).astype(np.uint32)


@dataclass
class Both(Node):
    """Short-circuit `&&`: the right side runs with the lanes whose left side holds."""

    left: Node
    right: Node

    def text(self) -> str:
        return f"(({self.left.text()}) && ({self.right.text()}))"

    def evaluate(self, state: State, mask: Mask) -> np.ndarray:
        left = self.left.evaluate(state, mask) != 0
        right = self.right.evaluate(state, mask & left) != 0 if (mask & left).any() else left
        return (left & right).astype(np.uint32)


@dataclass
class Call(Node):
    function: "Function"
    argument: Node

    def text(self) -> str:
        return f"{self.function.called}(lane, {self.argument.text()})"

    def evaluate(self, state: State, mask: Mask) -> np.ndarray:
        inner = State({"x": self.argument.evaluate(state, mask)}, state.lane)
        if mask.any():
            run(self.function.body, inner, mask)
        return inner.values["x"]


@dataclass
class Remainder(Node):
    value: Node

    def text(self) -> str:
        return f"{self.value.text()} % 3u != 0u"

    def evaluate(self, state: State, mask: Mask) -> np.ndarray:
        return (self.value.evaluate(state, mask) % 3 != 0).astype(np.uint32)


# ---- statements


def run(statements: list[Node], state: State, mask: Mask) -> Mask:
    for statement in statements:
        if mask.any():
            mask = statement.run(state, mask)
    return mask


def block(statements: list[Node]) -> str:
    return "{ " + " ".join(s.text() for s in statements) + " }"


@dataclass
class Assign(Node):
    name: str
    value: Node

    def text(self) -> str:
        return f"{self.name} = {self.value.text()};"

    def run(self, state: State, mask: Mask) -> Mask:
        value = self.value.evaluate(state, mask)
        state.values[self.name] = np.where(mask, value, state.values[self.name])
        return mask


@dataclass
class If(Node):
    condition: Node
    yes: list[Node]
    no: list[Node]

    def text(self) -> str:
        return f"if ({self.condition.text()}) {block(self.yes)} else {block(self.no)}"

    def run(self, state: State, mask: Mask) -> Mask:
        chosen = self.condition.evaluate(state, mask) != 0
        return run(self.yes, state, mask & chosen) | run(self.no, state, mask & ~chosen)


@dataclass
class Jump(Node):
    kind: str  # break, continue or return

    def text(self) -> str:
        return {"return": "return x;"}.get(self.kind, f"{self.kind};")

    def run(self, state: State, mask: Mask) -> Mask:
        waiting = {"break": state.breaking, "continue": state.continuing, "return": state.returning}[self.kind]
        waiting |= mask
        return np.zeros(LANES, bool)


@dataclass
class Loop(Node):
    """`counter` runs down from `count`; what the loop looks like is up to `form`."""

    form: str
    counter: str
    count: Node
    condition: Node  # evaluated after the counter's test, with the lanes that passed it
    body: list[Node]

    def text(self) -> str:
        start = f"uint {self.counter} = {self.count.text()};"
        test = f"{self.counter} > 0 && ({self.condition.text()})"
        if self.form == "for":
            return f"for (uint {self.counter} = {self.count.text()}; {test}; {self.counter}--) {block(self.body)}"
        if self.form == "while":
            counted = f"--{self.counter} > 0 && ({self.condition.text()})"
            return f"{{ {start} {self.counter}++; while ({counted}) {block(self.body)} }}"
        return f"{{ {start} do {block(self.body)} while (--{self.counter} < 100 && {test}); }}"

    def run(self, state: State, mask: Mask) -> Mask:
        outer = state.breaking, state.continuing
        state.breaking, state.continuing = np.zeros(LANES, bool), np.zeros(LANES, bool)
        state.values[self.counter] = np.where(mask, self.count.evaluate(state, mask), 0).astype(np.uint32)
        left = np.zeros(LANES, bool)
        inside, first = mask, self.form == "do"
        while inside.any():
            if not first:
                stays = inside & (state.values[self.counter] > 0) & (state.values[self.counter] < 100)
                holds = (self.condition.evaluate(state, stays) != 0) & stays if stays.any() else stays
                left |= inside & ~holds
                inside = holds
            first = False
            inside = run(self.body, state, inside) | state.continuing
            state.continuing = np.zeros(LANES, bool)
            state.values[self.counter] = state.values[self.counter] - inside.astype(np.uint32)
        left |= state.breaking
        state.breaking, state.continuing = outer
        return left


@dataclass
class Switch(Node):
    """The last statement of a case may be a break; without it lanes fall into the next case."""

    value: Node
    cases: list[tuple[list[Node], bool]]

    def text(self) -> str:
        text = f"switch ({self.value.text()}) {{ "
        for i, (body, breaks) in enumerate(self.cases):
            text += f"case {i}: {block(body)} {'break; ' if breaks else ''}"
        return text + "}"

    def run(self, state: State, mask: Mask) -> Mask:
        value = self.value.evaluate(state, mask)
        falling, done = np.zeros(LANES, bool), mask & (value >= len(self.cases))
        for i, (body, breaks) in enumerate(self.cases):
            falling = run(body, state, falling | (mask & (value == i)))
            if breaks:
                done, falling = done | falling, np.zeros(LANES, bool)
        return done | falling


@dataclass
class Function:
    name: str
    form: str  # plain, template, method or lambda
    body: list[Node]

    @property
    def called(self) -> str:
        return {"template": f"{self.name}<3>", "method": f"{self.name}().run"}.get(self.form, self.name)

    def text(self) -> str:
        rest = f"(uint lane, uint x) {{ {' '.join(s.text() for s in self.body)} return x; }}"
        if self.form == "lambda":
            return f"auto {self.name} = []{rest};"
        if self.form == "method":
            return f"struct {self.name} {{ uint run{rest} }};"
        return ("template <int N> " if self.form == "template" else "static ") + f"uint {self.name}{rest}"


@dataclass
class Program:
    number: int
    functions: list[Function]
    body: list[Node]

    def text(self) -> str:
        """Metal source: each thread's result goes to out[t]."""
        outside = [f.text() for f in self.functions if f.form != "lambda"]
        inside = [f.text() for f in self.functions if f.form == "lambda"]
        parameters = "device uint* out, uint lane [[thread_index_in_simdgroup]], uint t [[thread_position_in_grid]]"
        start = f"kernel void k{self.number}({parameters}) {{ uint x = (t * 2654435761u) >> 7u;"
        lines = [*outside, start, *inside, *(s.text() for s in self.body), "out[t] = x; }"]
        return "\n".join(lines) + "\n"

    def run(self, threads: int) -> np.ndarray:
        """What the model gives for one threadgroup of so many threads."""
        out = []
        for first in range(0, threads, LANES):
            lane = np.arange(LANES, dtype=np.uint32)
            x = ((lane + np.uint32(first)) * np.uint32(2654435761)) >> np.uint32(7)
            state = State({"x": x}, lane)
            run(self.body, state, first + lane < threads)
            out.append(state.values["x"])
        return np.concatenate(out)[:threads]


class Generator:
    """Random programs: everything follows from the number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.random = random.Random(number)
        self.functions: list[Function] = []
        self.counters = 0

    def simple(self) -> str:
        n = self.random.randint(1, 9)
        return self.random.choice(
            [f"x * {n}u + lane", f"(x >> {n}u) + {n}u", f"x ^ (lane * {n}u)", f"lane + {n}u", "x"]
        )

    def test(self) -> Simple:
        n = self.random.randint(2, 5)
        choices = [f"(x >> {n}u) % 2u", f"lane % {n}u == 1u", f"lane < {4 * n}u", f"(x + lane) % {n}u != 0u"]
        return Simple(self.random.choice(choices))

    def condition(self) -> Node:
        if self.random.random() < 0.3:
            return Both(self.test(), self.odd())
        return self.test()

    def odd(self) -> Node:
        """A condition that holds an operation: whether a sum is no multiple of 3."""
        return Remainder(self.operation(0))

    def operation(self, depth: int) -> Node:
        name = self.random.choice(["sum", "sum", "max", "broadcast_first", "prefix_inclusive_sum"])
        return Operation(name, self.expression(depth - 1))

    def expression(self, depth: int) -> Node:
        kind = self.random.random()
        if depth <= 0 or kind < 0.2:
            return Simple(self.simple())
        if kind < 0.6:
            return self.operation(depth)
        if kind < 0.8 and self.functions:
            return Call(self.random.choice(self.functions), self.expression(depth - 1))
        return Choice(self.condition(), self.expression(depth - 1), self.expression(depth - 1))

    def statements(self, depth: int, in_loop: bool, in_function: bool) -> list[Node]:
        return [self.statement(depth, in_loop, in_function) for _ in range(self.random.randint(1, 2))]

    def statement(self, depth: int, in_loop: bool, in_function: bool) -> Node:
        kind = self.random.random()
        if depth <= 0 or kind < 0.35:
            return Assign("x", self.expression(2))
        if kind < 0.55:
            return If(
                self.condition(), self.statements(depth - 1, in_loop, in_function), self.tail(in_loop, in_function)
            )
        if kind < 0.65:
            cases = [(self.statements(depth - 1, False, False), self.random.random() < 0.5) for _ in range(3)]
            return Switch(Simple(f"(x + lane) % {self.random.randint(3, 5)}u"), cases)
        return self.loop(depth, in_function)

    def tail(self, in_loop: bool, in_function: bool) -> list[Node]:
        jumps = ["break", "continue"] * in_loop + ["return"] * in_function
        if jumps and self.random.random() < 0.7:
            return [Assign("x", self.expression(1)), Jump(self.random.choice(jumps))]
        return []

    def loop(self, depth: int, in_function: bool) -> Loop:
        self.counters += 1
        count = Simple(self.random.choice(["lane % 4u", "(x >> 2u) % 3u", "3u", "2u + lane % 2u"]))
        condition = self.odd() if self.random.random() < 0.3 else Simple("1u")
        form = self.random.choice(["for", "while", "do"])
        return Loop(form, f"c{self.counters}", count, condition, self.statements(depth - 1, True, in_function))

    def program(self, forms: tuple[str, ...]) -> Program:
        for form in forms:
            function = Function(f"f{self.number}_{form}", form, self.statements(1, False, True))
            self.functions.append(function)
        return Program(
            self.number, self.functions, [*self.statements(2, False, False), self.statement(2, False, False)]
        )

"""Writes the swizzles of vectors (`v.xyz`, `v.wx = ...`) as properties: lvalues that deduce as vectors."""

from itertools import product


def _accessors(size: int, indices: tuple[int, ...]) -> str:
    name = "".join("xyzw"[i] for i in indices)
    if len(indices) == 1:
        get = f"METALSIM_INLINE constexpr T get_{name}() const {{ return v[{indices[0]}]; }}"
        put = f"METALSIM_INLINE void put_{name}(T s) {{ v[{indices[0]}] = s; }}"
        return f"{get} METALSIM_CONSTANT_METHOD(T get_{name}()) {put}"
    kind = f"vec<T, {len(indices)}>"
    length = len(indices)
    values = ", ".join(f"(T)v[{i}]" for i in indices)
    text = f"METALSIM_INLINE constexpr {kind} get_{name}() const {{ return {kind}({values}); }}"
    text += f" METALSIM_CONSTANT_METHOD(vec{length} get_{name}())"
    if len(set(indices)) == len(indices):
        assignments = " ".join(f"v[{i}] = s.v[{k}];" for k, i in enumerate(indices))
        text += f" METALSIM_INLINE void put_{name}({kind} s) {{ {assignments} }}"
    return text


def _property(letters: str, indices: tuple[int, ...]) -> str:
    name = "".join("xyzw"[i] for i in indices)
    shown = "".join(letters[i] for i in indices)
    put = f", put = put_{name}" if len(set(indices)) == len(indices) else ""
    kind = "T" if len(indices) == 1 else f"vec<T, {len(indices)}>"
    return f"__declspec(property(get = get_{name}{put})) {kind} {shown};"


def swizzle_header() -> str:
    """The text of metalsim/swizzle.inc."""
    lines = ["typedef vec<T, 2> vec2; typedef vec<T, 3> vec3; typedef vec<T, 4> vec4;"]
    for size in (2, 3, 4):
        lines.append(f"#ifdef METALSIM_SWIZZLE_{size}")
        for length in (1, 2, 3, 4):
            for indices in product(range(size), repeat=length):
                lines.append(_accessors(size, indices))
                lines += [_property(letters, indices) for letters in ("xyzw", "rgba")]
        lines.append("#endif")
    return "\n".join(lines) + "\n"

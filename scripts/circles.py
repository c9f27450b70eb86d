"""Find import cycles between the files of a crate.

    python3 scripts/circles.py [--edges CRATE] [--against FILE]

There is an edge from one file to another if the first names an item that the second defines. Tests are ignored. A re-exported
item counts at its definition, so `pub use` of a child's items makes no edge to the child. `mod x;` makes no edge.
Exit code 1 if there is a cycle, or an import that FORBIDDEN lists.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Modules of one crate that must not import each other: (crate, importer, imported). `*` is every other module of the crate.
FORBIDDEN = [
    ("briquette-methods", "prune", "quant"),
    ("briquette-methods", "quant", "prune"),
    ("briquette-recipe", "parse", "plan"),
    ("briquette-formats", "io", "*"),
    ("briquette-core", "simd", "entropy"),
    ("briquette-ops", "fused", "compressed"),
    ("briquette-pipeline", "report", "*"),
]
ITEM = {"fn", "struct", "enum", "trait", "type", "const", "static", "union"}
TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)|(?P<raw>b?r(?P<hash>\#*)".*?"(?P=hash))|(?P<string>b?"(?:\\.|[^"\\])*")"""
    r"""|(?P<char>b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'])')|(?P<life>'\w+)|(?P<word>[A-Za-z_]\w*!?(?!=)|[A-Za-z_]\w*)|(?P<path>::)|(?P<other>.)""",
    re.S | re.X,
)


def tokens(text):
    """Returns the words and signs of a file, without comments, strings and tests."""
    text = without_block_comments(text)
    found = [m.group() for m in TOKEN.finditer(text) if m.lastgroup not in ("space", "raw", "string", "char", "life", "hash")]
    return without_tests(found)


def without_block_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def closing(found, at):
    """Returns the index after the bracket that closes the bracket at `at`."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    depth = 0
    for place in range(at, len(found)):
        if found[place] in pairs:
            depth += 1
        elif found[place] in pairs.values():
            depth -= 1
            if depth == 0:
                return place + 1
    return len(found)


def item_end(found, at):
    """Returns the index after the item that starts at `at`: after its semicolon or its closing brace."""
    while at < len(found):
        if found[at] == ";":
            return at + 1
        if found[at] in "([":
            at = closing(found, at)
        elif found[at] == "{":
            return closing(found, at)
        else:
            at += 1
    return at


def without_tests(found):
    kept, at = [], 0
    while at < len(found):
        if found[at] == "#" and found[at + 1 : at + 2] == ["["]:
            end = closing(found, at + 1)
            inside = found[at + 2 : end - 1]
            if inside[:1] == ["cfg"] and "test" in inside and "not" not in inside:
                while found[end : end + 1] == ["#"]:
                    end = closing(found, end + 1)
                if found[end : end + 1] == ["mod"] and found[end + 2 : end + 3] == [";"]:
                    kept += ["#test-module", found[end + 1]]
                at = item_end(found, end)
            else:
                at = end
        else:
            kept.append(found[at])
            at += 1
    return kept


class Module:
    def __init__(self, path, file):
        self.path, self.file = path, file
        self.items, self.children, self.imports, self.globs = set(), {}, {}, []
        self.words = []


def use_leaves(found, at, prefix):
    """Returns the leaves of the use tree that starts at `at` as (path, alias), and the index after the tree."""
    leaves, path = [], list(prefix)
    while at < len(found):
        sign = found[at]
        if sign == "{":
            at += 1
            while found[at] != "}":
                inner, at = use_leaves(found, at, path)
                leaves += inner
                if found[at] == ",":
                    at += 1
            return leaves, at + 1
        if sign == "*":
            return [(path, "*")], at + 1
        if sign == "::":
            at += 1
        elif sign == "as":
            return [(path, found[at + 1])], at + 2
        elif sign in (",", ";", "}"):
            break
        else:
            path.append(sign)
            at += 1
    if path and path[-1] == "self":
        path = path[:-1]
    return [(path, path[-1])] if path else [], at


def read_module(module, found, modules):
    """Records the definitions and imports of a module. Inline modules are modules of the same file."""
    at, depth = 0, 0
    while at < len(found):
        word = found[at]
        if word == "use" and (at == 0 or found[at - 1] not in (".",)):
            if found[at + 1] == "<":
                at += 1
                continue
            leaves, at = use_leaves(found, at + 1, [])
            for path, alias in leaves:
                if alias == "*":
                    module.globs.append(path)
                else:
                    module.imports[alias] = path
            continue
        if word == "mod" and depth == 0 and found[at + 2] == "{":
            name, end = found[at + 1], closing(found, at + 2)
            child = Module(module.path + [name], module.file)
            module.children[name] = child
            modules["::".join(child.path)] = child
            read_module(child, found[at + 3 : end - 1], modules)
            at = end
            continue
        if word == "mod" and depth == 0 and found[at + 2] == ";":
            at += 3
            continue
        if depth == 0 and word in ITEM and at + 1 < len(found) and re.match(r"[A-Za-z_]\w*$", found[at + 1]):
            if not (word == "const" and found[at + 1] in ("fn", "unsafe")):
                module.items.add(found[at + 1])
        if depth == 0 and word == "macro_rules!":
            module.items.add(found[at + 1] + "!")
        depth += (word == "{") - (word == "}")
        module.words.append(word)
        at += 1


def read_crate(source):
    """Returns the modules of a crate by path, and its files."""
    modules, tests = {}, set()
    files = sorted(source.rglob("*.rs"))
    found = {file: tokens(file.read_text()) for file in files}
    for file in files:
        for place, word in enumerate(found[file]):
            if word == "#test-module":
                tests.add("::".join(module_path(source, file) + [found[file][place + 1]]))
    for file in files:
        path = module_path(source, file)
        if any("::".join(path[:n]) in tests for n in range(1, len(path) + 1)):
            continue
        module = Module(path, file)
        modules["::".join(path)] = module
        read_module(module, found[file], modules)
    for name, module in modules.items():
        if module.path:
            parent = modules.get("::".join(module.path[:-1]))
            if parent:
                parent.children[module.path[-1]] = module
    return modules


def module_path(source, file):
    path = list(file.relative_to(source).with_suffix("").parts)
    return path[:-1] if path[-1] in ("lib", "main", "mod") else path


def resolve(modules, module, path, seen=()):
    """Returns the module that defines the first item of `path` as seen from `module`, or None."""
    if not path:
        return None
    here, rest = module, list(path)
    if rest[0] == "crate":
        here, rest = modules[""], rest[1:]
    else:
        while rest and rest[0] in ("self", "super"):
            if rest[0] == "super":
                here = modules.get("::".join(here.path[:-1]))
                if here is None:
                    return None
            rest = rest[1:]
    while rest:
        name = rest[0]
        # A module and a function may share a name; if more segments follow, the name is the module.
        if name in here.items and not (len(rest) > 1 and name in here.children):
            return here
        if name in here.children:
            here, rest = here.children[name], rest[1:]
            continue
        key = ("::".join(here.path), name)
        if key in seen:
            return None
        if name in here.imports and here.imports[name] != rest:
            return resolve(modules, here, here.imports[name] + rest[1:], (*seen, key))
        for glob in here.globs:
            found = resolve(modules, here, glob + rest, (*seen, key))
            if found is not None:
                return found
        return None
    return None


def used_paths(words):
    """Yields every path in a module's code: names joined by `::`. A name after a dot is a field or a method."""
    at = 0
    while at < len(words):
        if re.match(r"[A-Za-z_]\w*!?$", words[at]) and (at == 0 or words[at - 1] != "."):
            path = [words[at]]
            while at + 2 < len(words) and words[at + 1] == "::" and re.match(r"[A-Za-z_]", words[at + 2]):
                path.append(words[at + 2])
                at += 2
            yield path
        at += 1


def edges(modules):
    """Returns, for each file, the files whose items it names."""
    found = {}
    for module in modules.values():
        out = found.setdefault(module.file, set())
        for path in used_paths(module.words):
            target = resolve(modules, module, path)
            if target is not None and target.file != module.file:
                out.add(target.file)
    return found


def circles(graph):
    """Returns the groups of files that import each other (Tarjan's strongly connected components)."""
    index, low, stack, on, groups = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                other = stack.pop()
                on.discard(other)
                group.append(other)
                if other == node:
                    break
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return groups


def top_module(source, file):
    """Returns the module of the crate's root that a file belongs to; `lib` for the root itself."""
    return file.relative_to(source).with_suffix("").parts[0]


def forbidden_imports(source, graph):
    """Returns the edges of a crate that FORBIDDEN does not allow."""
    rules = [(importer, imported) for crate, importer, imported in FORBIDDEN if crate == source.parent.name]
    found = []
    for file, others in graph.items():
        for other in others:
            pair = (top_module(source, file), top_module(source, other))
            if pair[0] != pair[1] and any(pair[0] == a and b in (pair[1], "*") for a, b in rules):
                found.append(f"{file.relative_to(source)} -> {other.relative_to(source)}")
    return sorted(found)


def main():
    sys.setrecursionlimit(10_000)
    shown = sys.argv[2] if sys.argv[1:2] == ["--edges"] else None
    bad = 0
    for source in sorted(ROOT.glob("crates/*/src")):
        modules = read_crate(source)
        graph = edges(modules)
        for edge in forbidden_imports(source, graph):
            bad += 1
            print(f"{source.parent.name}: forbidden import {edge}")
        for group in circles(graph):
            bad += 1
            print(f"{source.parent.name}: {len(group)} files import each other")
            for file in group:
                to = sorted(str(other.relative_to(source)) for other in graph[file] if other in group)
                print(f"    {file.relative_to(source)} -> {', '.join(to)}")
        if shown == source.parent.name:
            for file in sorted(graph):
                print(f"{file.relative_to(source)} -> {', '.join(sorted(str(o.relative_to(source)) for o in graph[file]))}")
    print(f"{bad} circles and forbidden imports")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

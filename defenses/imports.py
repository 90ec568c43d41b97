"""Layer 8, CODE: which modules the code in a completion would import.

Code is looked for in fences and in the text as a whole, by its syntax tree where it parses, and line by line always:
what does not parse, or is too long or too deep to be parsed safely, still has lines. Nothing is executed or compiled.
"""

import ast
import re
import unicodedata
from collections.abc import Iterator

LONGEST_PARSED = 8192  # characters; the parser's depth is bounded by its input
DEEPEST_PARSED = 40  # open brackets
MOST_BLOCKS = 16
MOST_NESTED = 2  # code in strings of code
HIDDEN = "?"  # a module whose name is computed

_SUSPECT = re.compile(r"import|__builtins__|\b(?:exec|eval|compile)\b")
_FENCE = re.compile(r"```[^\n`]{0,40}\n?([^`]{0,20000})(?:```|$)|(?<!`)`([^`\n]{1,400})`(?!`)")
_NAME = r"[^\W\d]\w{0,200}"
_DOTTED = rf"{_NAME}(?:\.{_NAME}){{0,20}}"
_ALIASED = rf"{_DOTTED}(?:[ \t]+as[ \t]+{_NAME})?"
_END = r"[ \t]*(?:[;#)].*)?$"
_IMPORT = re.compile(rf"[ \t]*import[ \t]+({_ALIASED}(?:[ \t]*,[ \t]*{_ALIASED}){{0,20}}){_END}")
_FROM = re.compile(
    rf"[ \t]*from[ \t]+(\.{{0,8}}[ \t]*(?:{_DOTTED})?)[ \t]*\bimport\b[ \t]*"
    rf"(?:\*|\(|{_ALIASED}(?:[ \t]*,[ \t]*{_ALIASED}){{0,20}}){_END}"
)
_FROM_OPEN = re.compile(rf"[ \t]*from[ \t]+(\.{{0,8}}[ \t]*(?:{_DOTTED})?)[ \t]*\bimport\b[ \t]*\(")
_PROMPT = re.compile(r"[ \t]*(?:>{1,3}|\.\.\.|In \[\d{1,4}\]:|\$)[ \t]")
_HEAD = re.compile(
    r"[ \t]*(?:if|elif|else|try|except|finally|for|while|with|def|class|async)\b"
    r"|[ \t]*(?:code|python|program|solution|script|answer)\b",
    re.IGNORECASE,
)
# In the midst of a sentence "from China import goods" is prose, unless it ends as code does or its names are called.
_FROM_WITHIN = re.compile(
    rf"\bfrom[ \t]{{1,8}}({_DOTTED})[ \t]{{1,8}}import[ \t]{{1,8}}(\(|\*|{_NAME})([ \t]*(?:[;)`'\"\]<$}}*]|$))?", re.M
)
_IMPORT_WITHIN = re.compile(rf"\bimport[ \t]{{1,8}}({_DOTTED})(?:[ \t]{{1,8}}as[ \t]{{1,8}}({_NAME}))?")
_CALL = re.compile(rf"(?<![\w.])({_DOTTED})\(")
_CALLED = re.compile(r"(__import__|__builtins__|\bimport_module\s{0,4}\(|\bimportlib\s{0,4}\.)")
_LITERAL = re.compile(rf"\s{{0,4}}\(\s{{0,4}}[\"']({_DOTTED})[\"']\s{{0,4}}\)")
_IN_STRING = re.compile(r"\b(?:exec|eval|compile)\s{0,4}\(\s{0,4}[rbfuRBFU]{0,2}(?:'{3}|\"{3}|['\"])([^'\"]{0,400})")
# The parser prints a warning about "1if" and about unknown escapes: peers' text must not reach the log that way.
_GLUED = re.compile(r"(?<!\w)\d[\w.]{0,60}(?:and|else|for|if|in|is|or|not)\b")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = "\\'\"abfnrtvxuUN0123\n"
_RUN = re.compile(r"(?:[-+~][ \t]*){40}|(?:\bnot[ \t(]{1,4}){40}|(?:\blambda\b[^\n]{0,20}:[ \t]*){20}")


def forbidden_import(text: str, allowed: frozenset[str]) -> str | None:
    """Return the first module outside `allowed` that code in the text would import; None when there is none.

    A name that is computed rather than written is returned as "?".
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)  # as Python does with names
    if _SUSPECT.search(text) is None:
        return None
    for module in _modules(text, 0):
        if module.split(".")[0] not in allowed:
            return module
    return None


def _modules(text: str, level: int) -> Iterator[str]:
    """Yield the modules that a text imports, in no promised order; repeats are possible."""
    text = text.replace("\\\n", " ").replace("\r", "\n")
    yield from _called(text)
    yield from _within(text)
    for line in text.split("\n"):
        if _SUSPECT.search(line) is not None:
            yield from _from_line(line, level)
    for count, block in enumerate(_FENCE.finditer(text)):
        if count >= MOST_BLOCKS:
            break
        code = block.group(1) or block.group(2) or ""
        yield from _from_tree(code, level)
        if block.group(2) is not None:
            yield from _from_line(code, level)
    yield from _from_tree(text, level)


def _called(text: str) -> Iterator[str]:
    """Yield the modules of imports by call: their literal names, else the mark of a hidden one."""
    for found in _CALLED.finditer(text):
        literal = _LITERAL.match(text, found.end()) if found.group(1) == "__import__" else None
        yield literal.group(1) if literal else HIDDEN


def _within(text: str) -> Iterator[str]:
    """Yield the modules of imports in the midst of a line that what stands around them shows to be code."""
    called = {name for found in _CALL.finditer(text) for name in _prefixes(found.group(1))}
    for found in _FROM_WITHIN.finditer(text):
        if found.group(3) is not None or found.group(2) in "(*" or found.group(2) in called:
            yield found.group(1)
    for found in _IMPORT_WITHIN.finditer(text):
        if f"{found.group(2) or found.group(1)}." in called:
            yield found.group(1)


def _prefixes(name: str) -> Iterator[str]:
    """Yield a dotted name and all that it begins with, these with their dots: a.b.c gives a., a.b. and a.b.c."""
    yield name
    yield from (name[: at + 1] for at, character in enumerate(name) if character == ".")


def _from_line(line: str, level: int) -> Iterator[str]:
    """Yield what one line imports, statement by statement."""
    line = line[:2000]
    prompt = _PROMPT.match(line)
    rest = line[prompt.end() :] if prompt else line
    for found in _IN_STRING.finditer(rest):
        if level < MOST_NESTED:
            yield from _modules(found.group(1).replace("\\n", "\n").replace("\\t", " "), level + 1)
    statements = rest.split(";")
    for place, statement in enumerate(statements[:64]):
        if "import" in statement and (place == 0 or _is_code(statements[place - 1])):
            yield from _statement(statement)


def _statement(text: str) -> Iterator[str]:
    head, colon, tail = text.partition(":")
    if colon and _HEAD.match(head):
        text = tail
    found = _IMPORT.match(text)
    if found:
        yield from (name.split()[0] for name in found.group(1).split(","))
    found = _FROM.match(text) or _FROM_OPEN.match(text)
    if found:
        yield found.group(1).replace(" ", "") or HIDDEN


def _is_code(text: str) -> bool:
    """Whether what stands before a semicolon is a statement rather than prose."""
    tree = _tree(text.strip().partition(":")[2].strip() or text.strip())
    return tree is not None


def _tree(code: str) -> ast.Module | None:
    """Return the syntax tree of a piece of code; None when it does not parse or could not be parsed safely."""
    if len(code) > LONGEST_PARSED or _depth(code) > DEEPEST_PARSED or _RUN.search(code) or _GLUED.search(code):
        return None
    known = _ESCAPE.sub(lambda found: found.group() if found.group(1) in _ESCAPES else "\\" + found.group(), code)
    try:
        return ast.parse(known)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _depth(code: str) -> int:
    depth = deepest = 0
    for character in code:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _from_tree(code: str, level: int) -> Iterator[str]:
    """Yield what the nodes of a piece of code import, code in its strings included."""
    tree = _tree(code) or _tree(_dedented(code))
    if tree is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield HIDDEN if node.level else node.module or HIDDEN
        elif isinstance(node, ast.Call) and level < MOST_NESTED:
            yield from _from_call(node, level)


def _from_call(node: ast.Call, level: int) -> Iterator[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in ("exec", "eval", "compile") and node.args:
        content = _constant(node.args[0], 0)
        if content and _SUSPECT.search(content):
            yield from _modules(content, level + 1)


def _constant(node: ast.expr, depth: int) -> str:
    """Return the string that an expression of constants makes; "" when it is none."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth < DEEPEST_PARSED:
        return _constant(node.left, depth + 1) + _constant(node.right, depth + 1)
    return ""


def _dedented(code: str) -> str:
    return "\n".join(line.lstrip() for line in code.split("\n")) if code[:1] in (" ", "\t") else ""

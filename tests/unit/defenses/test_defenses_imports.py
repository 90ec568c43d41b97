"""Imports in completions: found in trees, lines and strings; prose about imports is no import."""

import warnings

import pytest

from shoal.defenses.imports import forbidden_import

ALLOWED = frozenset({"math", "re", "__future__"})
FORBIDDEN = {
    "import q": "q",
    "import q\ncba": "q",
    "from q import c\n5": "q",
    "from q import *": "q",
    "  import q": "q",
    "import\tq": "q",
    "import q # note": "q",
    "import q;": "q",
    "import math, q": "q",
    "import math as m, q as r": "q",
    "import os.path": "os.path",
    "from os import path as p": "os",
    "x=1; import q": "q",
    "try: import q\nexcept: pass": "q",
    "import \\\n q": "q",
    "from q import (\n a,\n b)": "q",
    "from . import x": ".",
    ">>> import q": "q",
    "In [3]: import q": "q",
    "Code: import q": "q",
    "use `import q` here": "q",
    "```python\nimport q\n```": "q",
    "```\nif x:\n\timport q\n": "q",
    "x = [1,\n2]; from q import c": "q",
    "def f(:\n  import q\n": "q",
    "async def f():\n  import q": "q",
    "Let me use from q import c; c(2, 2)": "q",
    "So, from q import c and c(2, 2) = 4": "q",
    "1. from q import c": "q",
    "<b>from q import c</b>": "q",
    "We use (from q import *) here": "q",
    "We import q, so q.c(2, 2) = 4": "q",
    "First step: import q as r and r.c(2)": "q",
    "We import q.r, so q.r.s.c(2) = 4": "q.r",
    "__import__": "?",
    "__import__('q')": "q",
    "__import__ ( 'q' )": "q",
    "__import__('ma' + 'th')": "?",
    "lambda: __import__('q')": "q",
    "importlib.import_module('q')": "?",
    "import_module('q')": "?",
    "getattr(__builtins__, 'x')": "?",
    "exec('import q')": "q",
    "exec('imp' + 'ort q')": "q",
    "exec(b'import q')": "q",
    'exec("import math; import q")': "q",
    "eval(\"__import__('q')\")": "q",
    "exec('import q' +": "q",
    "exec('x = 1\\nimport q')": "q",
    "ｉｍｐｏｒｔ q": "q",  # noqa: RUF001
    "x = '\\d'\nimport q": "q",
    "(" * 10_000 + "\nimport q": "q",
}
HONEST = (
    "we import goods from China",
    "Import taxes rose.",
    "The import of cars and the export of grain",
    "Note: import duties apply",
    "from China import goods to sell",
    "Firms that buy from China import goods. They pay f(2).",
    "we import steel (a lot), steel. And we pay (2)",
    "use from math import sqrt; sqrt(4)",
    "We import math, so math.sqrt(4) = 2",
    "Countries import oil, gas and coal.",
    "it is important to eval the result",
    "Germany must import gas; export cars",
    "We export grain; import machines",
    "imports: 5, exports: 7",
    "they import and export",
    "evaluate(3), then compile the list",
    "import math",
    "import re, math",
    "import math as m",
    "from math import sqrt, pi",
    "from __future__ import annotations",
    "```python\nimport math\nprint(math.sqrt(4))\n```",
    "__import__('math')",
    "exec('1+1')",
    "exec('import math')",
    "x = 'import'",
    "42",
    "",
)


@pytest.mark.parametrize("text", FORBIDDEN)
def test_a_forbidden_import_is_found(text):
    assert forbidden_import(text, ALLOWED) == FORBIDDEN[text]


@pytest.mark.parametrize("text", HONEST)
def test_honest_texts_pass(text):
    assert forbidden_import(text, ALLOWED) is None


def test_without_allowed_modules_every_import_is_forbidden():
    assert forbidden_import("import math", frozenset()) == "math"


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "import",
        "[" * 39 + "1" + "]" * 39 + "#import",
        "-" * 8000 + "1 #import",
        "not " * 2000 + "import",
        "lambda:" * 1100 + "import",
        "1+" * 4000 + "1 #import",
        "x" + ".a" * 4000 + " #import",
        "x=" * 4000 + "1 #import",
        "1if 1else " * 800 + "1 #import",
        "exec(\"exec('import math')\")" * 2000,
        "```" * 20_000 + "import",
        "import " + "a." * 8000,
        "\x00import",
    ],
)
def test_code_made_to_break_the_parser_breaks_nothing(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert forbidden_import(text, ALLOWED) in (None, "?", "a")


def test_peers_code_prints_no_warnings():
    with warnings.catch_warnings(record=True) as printed:
        warnings.simplefilter("always")
        forbidden_import("x = '\\d' if 1 else 2\ny = 0or 1\nimport math", ALLOWED)
        forbidden_import("z = 1if x else 2 #import", ALLOWED)
    assert printed == []

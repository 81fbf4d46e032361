"""Names of a Lua chunk: which it reads and writes without declaring them, and which it declares.

A parser for the Lua 5.1 that the scripts are written in. It keeps scopes and forgets the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+|--\[\[.*?\]\]|--[^\n]*)
    |(?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")
    |(?P<number>0x[0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<symbol>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\];:,.])""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = {
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
}  # fmt: skip
_BINARY = re.compile(r"[-+*/%^<>]|\.\.|[=~<>]=|and|or")
_LITERALS = {"nil", "true", "false", "..."}
_END = ""


class LuaError(ValueError):
    """The text is not the Lua that this module reads."""


@dataclass
class Chunk:
    """The names that a chunk reads, writes and declares."""

    reads: set[str] = field(default_factory=set)  # declared neither here nor in a scope around it
    writes: set[str] = field(default_factory=set)  # assigned to, the same
    declares: list[str] = field(default_factory=list)  # locals of the outermost block
    inside: set[str] = field(default_factory=set)  # locals and parameters of all blocks
    returns: bool = False  # outside of its functions
    statements: list[str] = field(default_factory=list)  # of the outermost block, by first word


def tokens(text: str) -> list[tuple[str, str]]:
    """The tokens as (kind, text); comments and space are left out."""
    found: list[tuple[str, str]] = []
    position = 0
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break
        position = match.end()
        kind = str(match.lastgroup)
        if kind != "space":
            word = match.group()
            found.append(("keyword" if kind == "name" and word in _KEYWORDS else kind, word))
    if position < len(text):
        raise LuaError(f"no Lua at {text[position : position + 30]!r}")
    return [*found, ("end", _END)]


def read_chunk(text: str) -> Chunk:
    """Read a chunk: a script, a library or a piece of inline text."""
    return _Parser(tokens(text)).chunk()


class _Parser:
    def __init__(self, source: list[tuple[str, str]]) -> None:
        self.tokens = source
        self.texts = ["''" if kind == "string" else text for kind, text in source]
        self.position = 0
        self.scopes: list[set[str]] = [set()]
        self.functions = 0  # how deep
        self.found = Chunk()

    def chunk(self) -> Chunk:
        while self.peek() != _END:
            self.found.statements.append(self.statement(outermost=True))
        return self.found

    # --- tokens and names ---------------------------------------------------------------------

    def peek(self, ahead: int = 0) -> str:
        try:
            return self.texts[self.position + ahead]
        except IndexError:
            return _END

    def kind(self) -> str:
        return self.tokens[self.position][0]

    def take(self, expected: str | None = None) -> str:
        text = self.peek()
        if expected is not None and text != expected:
            raise LuaError(f"{text!r} stands where {expected!r} is expected")
        self.position += 1
        return text

    def accept(self, text: str) -> bool:
        is_there = self.peek() == text
        self.position += is_there
        return is_there

    def name(self) -> str:
        if self.kind() != "name":
            raise LuaError(f"{self.peek()!r} stands where a name is expected")
        return self.take()

    def names(self) -> list[str]:
        found = [self.name()]
        while self.accept(","):
            found.append(self.name())
        return found

    def declare(self, names: list[str], outermost: bool) -> None:
        self.scopes[-1].update(names)
        self.found.inside.update(names)
        if outermost:
            self.found.declares += names

    def known(self, name: str) -> bool:
        return any(name in scope for scope in self.scopes)

    def read(self, name: str | None) -> None:
        if name and not self.known(name):
            self.found.reads.add(name)

    # --- statements ---------------------------------------------------------------------------

    def block(self, *ends: str, names: list[str] | None = None, is_repeated: bool = False) -> None:
        self.scopes.append(set())
        self.declare(names or [], outermost=False)
        while self.peek() not in ends:
            if self.peek() == _END:
                raise LuaError(f"the text ends before {ends}")
            self.statement()
        if is_repeated:  # the condition reads names of the block
            self.take("until")
            self.expression()
        self.scopes.pop()

    def statement(self, outermost: bool = False) -> str:
        first = self.peek()
        if first == "local":
            return self.local(outermost)
        if first == "return":
            self.returns()
        elif first == "if":
            self.condition()
        elif first == "for":
            self.loop()
        elif first == "while":
            self.take()
            self.expression()
            self.take("do")
            self.block("end")
            self.take("end")
        elif first == "do":
            self.take()
            self.block("end")
            self.take("end")
        elif first == "repeat":
            self.take()
            self.block("until", is_repeated=True)
        elif first in ("break", ";"):
            self.take()
        else:
            return self.assignment_or_call()
        return first

    def local(self, outermost: bool) -> str:
        self.take("local")
        if self.accept("function"):
            self.declare([self.name()], outermost)
            self.function_body()
            return "local function"
        names = self.names()
        constant = True
        if self.accept("="):
            start = self.position
            self.expressions()
            constant = all(
                kind in ("string", "number") or text in "{}-," or text in _LITERALS
                for kind, text in self.tokens[start : self.position]
            )
        self.declare(names, outermost)
        return "local constant" if constant else "local"

    def returns(self) -> None:
        self.take("return")
        self.found.returns |= self.functions == 0
        if self.peek() not in ("end", "else", "elseif", "until", ";", _END):
            self.expressions()
        self.accept(";")

    def condition(self) -> None:
        self.take("if")
        self.expression()
        self.take("then")
        self.block("elseif", "else", "end")
        while self.accept("elseif"):
            self.expression()
            self.take("then")
            self.block("elseif", "else", "end")
        if self.accept("else"):
            self.block("end")
        self.take("end")

    def loop(self) -> None:
        self.take("for")
        names = self.names()
        self.take("=" if self.peek() == "=" else "in")
        self.expressions()
        self.take("do")
        self.block("end", names=names)
        self.take("end")

    def assignment_or_call(self) -> str:
        targets = [self.suffixed()]
        while self.accept(","):
            targets.append(self.suffixed())
        if not self.accept("="):
            return "call"
        self.expressions()
        self.found.writes |= {name for name in targets if name and not self.known(name)}
        return "assignment"

    # --- expressions --------------------------------------------------------------------------

    def expressions(self) -> None:
        self.expression()
        while self.accept(","):
            self.expression()

    def expression(self) -> None:
        while self.peek() in ("not", "-", "#"):
            self.take()
        if self.kind() in ("string", "number") or self.peek() in _LITERALS:
            self.take()
        elif self.accept("function"):
            self.function_body()
        elif self.peek() == "{":
            self.table()
        else:
            self.read(self.suffixed())
        if _BINARY.fullmatch(self.peek()):
            self.take()
            self.expression()

    def suffixed(self) -> str | None:
        """Read a name or a bracket with what follows it; the name where nothing follows."""
        bare: str | None = None
        if self.accept("("):
            self.expression()
            self.take(")")
        else:
            bare = self.name()
        while self.peek() in (".", "[", ":", "(", "{", "''"):
            self.read(bare)
            bare = None
            opened = self.take()
            if opened in (".", ":"):
                self.name()
            elif opened == "[":
                self.expression()
                self.take("]")
            elif opened == "(":
                if self.peek() != ")":
                    self.expressions()
                self.take(")")
            elif opened == "{":
                self.position -= 1
                self.table()
        return bare

    def table(self) -> None:
        self.take("{")
        while not self.accept("}"):
            if self.accept("["):
                self.expression()
                self.take("]")
                self.take("=")
            elif self.kind() == "name" and self.peek(1) == "=":
                self.take()
                self.take("=")
            self.expression()
            if not self.accept(","):
                self.accept(";")

    def function_body(self) -> None:
        self.take("(")
        names = [] if self.peek() in (")", "...") else self.names()
        self.accept("...")
        self.take(")")
        self.functions += 1
        self.block("end", names=names)
        self.functions -= 1
        self.take("end")

"""The documentation site: `make docs` builds it from the Markdown pages, which GitHub shows, too.

The source directory is the checkout, so that links from a page to the README, the scripts or an
example are the same here and on GitHub. The menu is made from the lists of index.md.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "RMQ"
root_doc = "docs/index"
include_patterns = ["[A-Z]*.md", "docs/**.md", "docs/api/*.rst", *(f"{one}/README.md" for one in
                    ("bench", "examples", "lua", "tests"))]  # fmt: skip
exclude_patterns = [".*", "rmq", "build", "dist", "bench/[a-z]*", "tests/[a-z]*"]
extensions = ["myst_parser", "sphinx_copybutton"]
extensions += [f"sphinx.ext.{one}" for one in ("autodoc", "autosummary", "napoleon")]
copybutton_prompt_text = "$ "  # a button copies the commands of a terminal, not what they print

myst_heading_anchors = 6  # levels of headings that links may name, as on GitHub
myst_enable_extensions = ["tasklist"]  # - [ ] is a box, as on GitHub

# docs/api.md names what is public; the rest is in the docstrings.
autodoc_default_options = {
    "members": True,
    "inherited-members": "RMQError,tuple,dict,bytes,BaseException,Formatter,Filter,Generic",
    "member-order": "bysource",
}
autodoc_mock_imports = ["pyspark", "pyarrow"]
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
default_role = "code"  # `name` in a docstring is a name of Python, as in Markdown
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
autosummary_generate = False  # `write_class_pages` does it
# Types of other packages, and of modules that nobody imports from. Text in the place of a type, a
# fault of a docstring, is reported.
nitpick_ignore_regex = [("py:class", r"[\w.]+")]

html_theme = "furo"
html_title = "RMQ"
html_static_path = ["site/static"]
html_css_files = ["rmq.css"]
templates_path = ["site"]
html_additional_pages = {"index": "front.html"}  # leads to docs/index.html
html_copy_source = True  # llms.txt names the Markdown of each page
html_show_sourcelink = False
html_show_copyright = False
highlight_language = "none"
linkcheck_timeout = 30
linkcheck_ignore = [r"https?://($|HOST|localhost|127\.0\.0\.1)"]  # examples

PUBLIC = ["rmq"]
PUBLIC += [f"rmq.{one}" for one in ("connectors", "interceptors", "ledger", "outbox", "testing")]
ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^]]*)\]\(([^)#:\s]+)\)")
NAMED_BLOCK = re.compile(r"^( *`{3,})(\w+) +(\S+\.\w+)$", re.MULTILINE)
SECOND_TERMINAL = re.compile(r"^( *`{3,})console worker$", re.MULTILINE)
BLOCK = re.compile(r"^```\{eval-rst\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLASS = re.compile(r"^\.\. autoclass:: (\S+)\n((?:   :.*\n)*)", re.MULTILINE)
PARAMETERS = re.compile(r"<dl>\n(?:<dd>.*?</dd>\n)+</dl>", re.DOTALL)
FOR_SCREEN_READERS = {
    'role="heading">': 'role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer': '<aside aria-label="This page" class="toc-drawer',
    '<th class="head"><p></p></th>': "<td></td>",
    "<pre>": '<pre tabindex="0">',  # so that keys scroll wide code and tables
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}
LIST_ITEM = re.compile(r"^- \[([^]]+)\]\(([^)]+)\.md\)", re.MULTILINE)


def lists_of(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the lists of pages in index.md, by heading: label and path without `.md`."""
    sections = text.split("\n## ")[1:]
    lists = {section.partition("\n")[0]: LIST_ITEM.findall(section) for section in sections}
    return {heading: pages for heading, pages in lists.items() if pages}


def toctree(pages: str, *options: str) -> str:
    """Return a toctree that only the menu shows."""
    lines = ["", "```{toctree}", ":hidden:", *options, "", pages, "```", ""]
    return "\n".join(lines)


def add_menu(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the front page the menu, and the page of a folder that of the folder."""
    if page == root_doc:
        for heading, pages in lists_of(source[0]).items():
            entries = "\n".join(f"{label} <{path}>" for label, path in pages)
            source[0] += toctree(entries, f":caption: {heading}")
    elif page.startswith("docs/") and page.endswith("/README"):
        source[0] += toctree("*", ":glob:")


def write_class_pages(app: Sphinx) -> None:
    """Write a page into docs/api for each class that docs/api.md names."""
    folder = ROOT / "docs" / "api"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for directive in CLASS.finditer((ROOT / "docs" / "api.md").read_text()):
        title = directive[1].rpartition(".")[2]
        page = f"{title}\n{'=' * len(title)}\n\n{directive[0]}"
        (folder / f"{directive[1]}.rst").write_text(page)


def list_classes(app: Sphinx, page: str, source: list[str]) -> None:
    """Show the classes of docs/api.md as tables that lead to their pages."""
    if page != "docs/api":
        return

    def listed(block: re.Match[str]) -> str:
        names = [directive[1] for directive in CLASS.finditer(block[1])]
        if not names:
            return block[0]
        table = "\n   ".join([".. autosummary::", ":nosignatures:", "", *names])
        pages = "\n   ".join([".. toctree::", ":hidden:", "", *(f"api/{name}" for name in names)])
        rest = CLASS.sub("", block[1])
        return f"```{{eval-rst}}\n{table}\n\n{pages}\n\n{rest}```"

    source[0] = BLOCK.sub(listed, source[0])


def name_files(app: Sphinx, page: str, source: list[str]) -> None:
    """Show the name of a file, or of a second terminal, above its code."""
    source[0] = NAMED_BLOCK.sub(r"\1{code-block} \2\n:caption: \3\n", source[0])
    source[0] = SECOND_TERMINAL.sub(
        r"\1{code-block} console\n:caption: A second terminal\n", source[0]
    )


def name_folders(app: Sphinx, page: str, source: list[str]) -> None:
    """Name a folder where a page links to it: GitHub shows folders, a site has none."""

    def shown(link: re.Match[str]) -> str:
        target = ((ROOT / page).parent / link[2]).resolve()
        return f"{link[1]} (`{target.relative_to(ROOT)}`)" if target.is_dir() else link[0]

    source[0] = LINK.sub(shown, source[0])


@functools.cache
def public_names() -> dict[str, str]:
    """Return the name by which each public class is imported, by where it is defined."""
    modules = (importlib.import_module(name) for name in PUBLIC)
    found = ((module, name, getattr(module, name)) for module in modules for name in module.__all__)
    return {
        f"{value.__module__}.{value.__qualname__}": f"{module.__name__}.{name}"
        for module, name, value in found
        if isinstance(value, type)
    }


def unlink_builtins(app: Sphinx, doctree: Any) -> None:
    """Let no builtin type lead to a name of ours: `type` would to `Delivery.type`."""
    from sphinx.addnodes import pending_xref

    for node in doctree.findall(pending_xref):
        if node["reftype"] == "class" and hasattr(builtins, node["reftarget"]):
            node["reftarget"] = f"builtins.{node['reftarget']}"


def link_type(app: Sphinx, env: Any, node: Any, text: Any) -> Any:
    """Lead from a type in a signature to its public name."""
    public = public_names().get(node["reftarget"])
    if node.get("refdomain") != "py" or public is None:
        return None
    python = env.get_domain("py")
    return python.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], public, node, text
    )


def hide_constructor(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Leave the signature out of what only RMQ makes: exceptions, and classes of internal types."""
    if not signature:
        return None
    types = re.findall(r"rmq(?:\.\w+){2,}", signature)
    is_internal = what == "class" and any(one not in public_names() for one in types)
    return ("", returns) if is_internal or what == "exception" else None


def skip_field(
    app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out the fields of a named tuple: the docstring of its class describes them."""
    return True if type(value).__name__ == "_tuplegetter" else None


def keep_colons(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Hide the docstring of a property from Napoleon, to which a type ends at a colon."""
    if what in ("property", "attribute"):
        kept[name] = lines[:]


def bring_back(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Bring back what `keep_colons` has hidden."""
    lines[:] = kept.pop(name, lines)


def write_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """Write the list of all pages for programs that read Markdown (https://llmstxt.org)."""
    if error is not None or app.builder.name != "html":
        return
    index = (ROOT / f"{root_doc}.md").read_text()
    title, about = index.split("\n\n")[:2]
    lines = [title, "", f"> {' '.join(about.split())}"]
    for heading, pages in lists_of(index).items():
        lines += ["", f"## {heading}", ""]
        for label, path in pages:
            name = (ROOT / "docs" / path).resolve().relative_to(ROOT)
            lines.append(f"- [{label}](_sources/{name}.md.txt)")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def _as_list(found: re.Match[str]) -> str:
    """Return the parameters of a signature as a list: Sphinx writes a <dl> without a <dt>."""
    text = found[0].replace("<dl>", '<div class="parameters" role="list">')
    text = text.replace("<dd>", '<div role="listitem">')
    return text.replace("</dd>", "</div>").replace("</dl>", "</div>")


def help_screen_readers(app: Sphinx, error: Exception | None) -> None:
    """Add to the pages what axe misses in the HTML of Sphinx and Furo."""
    if error is not None or app.builder.name != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text()
        for of_sphinx, wanted in FOR_SCREEN_READERS.items():
            text = text.replace(of_sphinx, wanted)
        path.write_text(PARAMETERS.sub(_as_list, text))


kept: dict[str, list[str]] = {}


def setup(app: Sphinx) -> None:
    """Register what Sphinx calls."""
    app.connect("builder-inited", write_class_pages)
    app.connect("source-read", list_classes)
    app.connect("source-read", add_menu)
    app.connect("source-read", name_files)
    app.connect("source-read", name_folders)
    app.connect("build-finished", write_llms_txt)
    app.connect("build-finished", help_screen_readers)
    app.connect("doctree-read", unlink_builtins)
    app.connect("missing-reference", link_type)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("autodoc-skip-member", skip_field)
    app.connect("autodoc-process-docstring", keep_colons, priority=499)
    app.connect("autodoc-process-docstring", bring_back, priority=501)  # Napoleon has 500

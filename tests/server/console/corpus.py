"""Texts that became script, or broke a page, in consoles of other queues; and how a page is read.

rq-dashboard#526, Temporal CVE-2024-2435, RabbitMQ CVE-2017-4965, Sidekiq CVE-2024-32887.
"""

from __future__ import annotations

from html.parser import HTMLParser

TEXTS = [
    "<script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "' autofocus onfocus='window.hacked=1",
    "</title></textarea></style></script><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{ 7*7 }}{% include 'base.html' %}${7*7}#{7*7}",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    '<a href="javascript:window.hacked=1">click</a>',
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<form action=//evil.example><button>Sign in</button></form>",
    "<style>*{display:none}</style><link rel=stylesheet href=//evil.example>",
    "<template><script>window.hacked=1</script></template><math><mtext></p></math>",
    "]]><!--<img src=--><img src=x onerror=window.hacked=1>//-->",
    "<base href=//evil.example/><meta http-equiv=refresh content='0;url=//evil.example'>",
    "<div hx-post=/console/topics/orders/delete hx-trigger=load>x</div>",
    "<svg><animate onbegin=window.hacked=1 attributeName=x></svg>",
    "\u202egnp.exe\u202c \u200bhidden\ufeff \u2066x\u2069",
    "line one\r\nSet-Cookie: evil=1\r\n\r\n<script>window.hacked=1</script>",
    "\x1b]0;title\x07\x1b[31mred\x00nul",
    "`${window.hacked=1}` \\u003cscript\\u003e %3Cscript%3E",
]

OURS = {
    "html", "head", "meta", "title", "link", "script", "body", "a", "header", "span", "nav",
    "div", "button", "details", "summary", "p", "form", "input", "main", "section", "footer",
    "dialog", "h1", "h2", "h3", "dl", "dt", "dd", "kbd", "svg", "path", "rect", "line", "text",
    "g", "small", "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td", "label",
    "select", "option", "code", "pre", "b", "ul", "li", "time", "progress", "br",
}  # fmt: skip


class Page(HTMLParser):
    """The elements of a page, as a browser makes them of its text.

    Attributes:
        faults: what no page of ours has.
        links: addresses of links and forms.
        ids: of elements.
        texts: what is shown.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in OURS or len(given) < len(attrs):
            self.faults.append(f"<{tag}>")
        if tag == "script" and not (given.get("src") or "").startswith("/console/static/"):
            self.faults.append("a script of its own")
        for name, value in attrs:
            if name.startswith(("on", "hx-", "srcdoc")) or name in ("style", "formaction-x"):
                self.faults.append(f"{tag} {name}={value}")
            if name in ("href", "src", "action", "formaction"):
                if not (value or "").startswith(("/console", "#")):
                    self.faults.append(f"{tag} {name}={value}")
                self.links.append(value or "")
        self.ids += [given["id"] or ""] if "id" in given else []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.faults.append(f"a comment: {data}")

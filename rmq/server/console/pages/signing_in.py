"""Signing in with a token, and out."""

from __future__ import annotations

from rmq.server.console.page import BASE, Ask, Pages, Redirect, View
from rmq.server.http import sessions
from rmq.server.http.api.problems import ApiError
from rmq.server.http.principal import Role

PAGES = Pages()

THEN_MAX = 1000


@PAGES.get("/signin", None)
async def ask_sign_in(ask: Ask) -> View | Redirect:
    """Ask for a token; who is let in already goes on."""
    if ask.principal is not None:
        return Redirect(_then(ask, ask.query.get("then", "")))
    return _view(ask, ask.query.get("then", ""))


@PAGES.post("/signin", None)
async def sign_in(ask: Ask) -> View | Redirect:
    """Begin a session with the token that was typed."""
    then = ask.form.get("then", "")
    try:
        cookie = await sessions.sign_in(ask.scope, ask.form.get("token", ""))
    except ApiError as error:
        if error.kind not in ("unauthorized", "too-many"):
            raise
        return _view(ask, then, error)
    return Redirect(_then(ask, then), cookie=cookie)


@PAGES.post("/signout", Role.VIEWER)
async def sign_out(ask: Ask) -> Redirect:
    """End the session."""
    return Redirect(ask.url("signin"), cookie=await sessions.sign_out(ask.scope))


def _view(ask: Ask, then: str, error: ApiError | None = None) -> View:
    status = {None: 200, "unauthorized": 401, "too-many": 429}[error.kind if error else None]
    return View(
        "signin.html", {"then": then[:THEN_MAX], "mistake": str(error or "")}, "Sign in", status
    )


def _then(ask: Ask, path: str) -> str:
    """Return the page to go on with: one of this console, and no other site's."""
    is_ours = path == BASE or path.startswith((BASE + "/", BASE + "?"))
    is_odd = not path.isprintable() or "\\" in path or "/.." in path or len(path) > THEN_MAX
    if not is_ours or is_odd:
        return ask.url()
    return ask.root + path

"""Tokens of the HTTP API and the console: who has one, and what it may do."""

from __future__ import annotations

from rmq.core.access import Role
from rmq.server.console.page import Ask, Pages, Redirect, View, duration

PAGES = Pages()


@PAGES.get("/tokens", Role.ADMIN)
async def tokens(ask: Ask) -> View:
    """List tokens, without their text."""
    return await _view(ask)


@PAGES.post("/tokens", Role.ADMIN)
async def create(ask: Ask) -> View:
    """Create a token; its text is shown by this answer, and never again."""
    expires = ask.form.get("expires", "").strip()
    made = await ask.at.admin.token_create(
        ask.form.get("name", "").strip(),
        ask.form.get("role", ""),
        sees_bodies=ask.form.get("sees_bodies") == "on",
        expires=duration(expires, "expires") if expires else None,
    )
    return await _view(ask, made.text, made.name)


@PAGES.post("/tokens/{name}/revoke", Role.ADMIN)
async def revoke(ask: Ask) -> Redirect:
    """Revoke a token; the sessions and streams that it began end within 5 s."""
    name = ask.path["name"]
    done = await ask.at.admin.token_revoke(name)
    return Redirect(ask.url("tokens"), f"Revoked {name}" if done else f"There is no token {name}")


async def _view(ask: Ask, text: str = "", made: str = "") -> View:
    found = await ask.at.admin.tokens()
    values = {"found": found, "roles": tuple(Role), "text": text, "made": made}
    return View("tokens.html", values, "Tokens")

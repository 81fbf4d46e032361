"""Tokens of the HTTP API and the console: who has one, and what it may do."""

from __future__ import annotations

from rmq.kernel.core.access import Role
from rmq.web.page import Ask, Pages, Redirect, View, duration
from rmq.web.problems import ApiError

PAGES = Pages()

EXPIRES = "90d"  # of a token for which nobody says when


@PAGES.get("/tokens", Role.ADMIN)
async def tokens(ask: Ask) -> View:
    """List tokens, without their text."""
    return await _view(ask)


@PAGES.post("/tokens", Role.ADMIN)
async def create(ask: Ask) -> View:
    """Create a token; its text is shown by this answer, and never again.

    It expires, unless a person says never, which an admin's token cannot.
    """
    expires = ask.form.get("expires", "").strip() or EXPIRES
    if expires == "never" and ask.form.get("role", "") == Role.ADMIN:
        raise ApiError("invalid", "expires: a token of an admin has to expire", "expires")
    made = await ask.at.admin.token_create(
        ask.form.get("name", "").strip(),
        ask.form.get("role", ""),
        sees_bodies=ask.form.get("sees_bodies") == "on",
        expires=None if expires == "never" else duration(expires, "expires"),
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
    values = {
        "found": found, "roles": tuple(Role), "text": text, "made": made, "expires": EXPIRES,
    }  # fmt: skip
    return View("tokens.html", values, "Tokens")

"""The page of the console on which an admin lists, creates and revokes access tokens."""

from __future__ import annotations

from rmq.http_framework.page import PageRequest, Pages, Redirect, View, duration
from rmq.http_framework.problems import ApiError
from rmq.kernel.core.access import Role

PAGES = Pages()

EXPIRES = "90d"  # default lifetime of a token


@PAGES.get("/tokens", Role.ADMIN)
async def tokens(request: PageRequest) -> View:
    """List tokens, without their text."""
    return await _view(request)


@PAGES.post("/tokens", Role.ADMIN)
async def create(request: PageRequest) -> View:
    """Create a token. Only this response shows its text.

    The token expires, unless the user chooses "never". The token of an admin must expire.
    """
    expires = request.form.get("expires", "").strip() or EXPIRES
    if expires == "never" and request.form.get("role", "") == Role.ADMIN:
        raise ApiError("invalid", "expires: a token of an admin must expire", "expires")
    made = await request.context.admin.token_create(
        request.form.get("name", "").strip(),
        request.form.get("role", ""),
        sees_bodies=request.form.get("sees_bodies") == "on",
        topics=request.form.get("topics", "").split(),
        expires=None if expires == "never" else duration(expires, "expires"),
    )
    return await _view(request, made.text, made.name)


@PAGES.post("/tokens/{name}/revoke", Role.ADMIN)
async def revoke(request: PageRequest) -> Redirect:
    """Revoke a token. Its sessions and streams end within 5 s."""
    name = request.path["name"]
    done = await request.context.admin.token_revoke(name)
    notice = f"Revoked {name}" if done else f"There is no token {name}"
    return Redirect(request.url("tokens"), notice)


async def _view(request: PageRequest, text: str = "", made: str = "") -> View:
    found = await request.context.admin.tokens()
    values = {
        "found": found, "roles": tuple(Role), "text": text, "made": made, "expires": EXPIRES,
    }  # fmt: skip
    return View("tokens.html", values, "Tokens")

"""The table of the console's pages, and the pages for health and for signing in."""

from __future__ import annotations

from rmq.features.audit import pages as audit_pages
from rmq.features.audit_trail import pages as audit_trail_pages
from rmq.features.batches import pages as batches_pages
from rmq.features.dead_letters import pages as dead_letters_pages
from rmq.features.dead_letters.jobs import pages as jobs_pages
from rmq.features.doctor import pages as doctor_pages
from rmq.features.groups import pages as groups_pages
from rmq.features.messages import pages as messages_pages
from rmq.features.schedules import pages as schedules_pages
from rmq.features.tokens import pages as tokens_pages
from rmq.features.topic_admin import pages as topic_pages
from rmq.features.workers import pages as workers_pages
from rmq.http_framework.page import BASE, Page, PageRequest, Pages, Redirect, View
from rmq.http_framework.problems import ApiError
from rmq.kernel.core.access import Role
from rmq.server import api as api_about, leases, sessions

HEALTH_PAGES = Pages()

SIGNING_IN_PAGES = Pages()


@HEALTH_PAGES.get("/health")
async def health(request: PageRequest) -> View:
    """Show the version of Redis, and the services of the server."""
    about = await request.readings.get("info", lambda: api_about.get_info(request.context), 5.0)
    values = {"services": request.context.state.services(), "about": about}
    return View("health.html", values, "Health")


THEN_MAX = 1000


@SIGNING_IN_PAGES.get("/signin", None)
async def ask_sign_in(request: PageRequest) -> View | Redirect:
    """Ask for a token. If the browser is already signed in, redirect it."""
    if request.principal is not None:
        return Redirect(_then(request, request.query.get("then", "")))
    return _view(request, request.query.get("then", ""))


@SIGNING_IN_PAGES.post("/signin", None)
async def sign_in(request: PageRequest) -> View | Redirect:
    """Start a session with the token that the user has typed."""
    then = request.form.get("then", "")
    try:
        cookie = await sessions.sign_in(request.scope, request.form.get("token", ""))
    except ApiError as error:
        if error.kind not in ("unauthorized", "too-many"):
            raise
        return _view(request, then, error)
    return Redirect(_then(request, then), cookie=cookie)


@SIGNING_IN_PAGES.post("/signout", Role.VIEWER)
async def sign_out(request: PageRequest) -> Redirect:
    """End the session."""
    return Redirect(request.url("signin"), cookie=await sessions.sign_out(request.scope))


def _view(request: PageRequest, then: str, error: ApiError | None = None) -> View:
    status = {None: 200, "unauthorized": 401, "too-many": 429}[error.kind if error else None]
    return View(
        "signin.html", {"then": then[:THEN_MAX], "mistake": str(error or "")}, "Sign in", status
    )


def _then(request: PageRequest, path: str) -> str:
    is_ours = path == BASE or path.startswith((BASE + "/", BASE + "?"))
    is_odd = not path.isprintable() or "\\" in path or "/.." in path or len(path) > THEN_MAX
    if not is_ours or is_odd:
        return request.url()
    return request.root + path


# Imported here: all pages are registered now.
TABLES = (
    topic_pages.PAGES, messages_pages.PAGES, leases.PAGES, dead_letters_pages.PAGES,
    audit_pages.PAGES, schedules_pages.PAGES, workers_pages.PAGES, jobs_pages.PAGES,
    doctor_pages.PAGES, HEALTH_PAGES,
    audit_trail_pages.PAGES, tokens_pages.PAGES, groups_pages.PAGES, batches_pages.PAGES,
    SIGNING_IN_PAGES,
)  # fmt: skip
PAGES: tuple[Page, ...] = tuple(page for table in TABLES for page in table.pages)
# For host applications that sign users in themselves.
WITHOUT_SIGN_IN = tuple(page for page in PAGES if page not in SIGNING_IN_PAGES.pages)

"""What protects a signed-in browser: headers of every response, and the checks of a write.

Pure. A write needs the session's CSRF token in a header, which a page of another site can
neither read nor send, and an Origin that is this server's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from bullpen.dashboard.sessions import SESSION_LIFETIME, Session, same
from bullpen.errors import Forbidden

CSRF_HEADER = "x-bullpen-csrf"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        # xterm.js sets the sizes of its rows and cells in style elements.
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = (
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=()"),
)

VISIT_SECONDS = 600
"""How long signing in at an outside issuer may take."""

SAFE_METHODS = frozenset({"GET", "HEAD"})


def cookie_name(host: str) -> str:
    """The name of the session cookie at ``host``.

    Browsers do not separate cookies by port, so two services on one machine need two names.
    """
    port = host.rpartition(":")[2] if ":" in host and not host.endswith("]") else "443"
    return f"__Host-bullpen-{port}" if port.isascii() and port.isdigit() else "__Host-bullpen"


def set_cookie(name: str, value: str) -> tuple[str, str]:
    """The header that sets the session cookie; an empty value removes it."""
    seconds = int(SESSION_LIFETIME.total_seconds()) if value else 0
    return (
        "set-cookie",
        f"{name}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Strict",
    )


def visit_cookie_name(host: str) -> str:
    """The name of the cookie of a browser that signs in at an outside issuer."""
    return f"{cookie_name(host)}-visit"


def set_visit_cookie(host: str, value: str) -> tuple[str, str]:
    """The header that sets that cookie, which comes back with a link from another site."""
    seconds = VISIT_SECONDS if value else 0
    return (
        "set-cookie",
        f"{visit_cookie_name(host)}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly;"
        " SameSite=Lax",
    )


def cookie(headers: Mapping[str, str], name: str) -> str:
    """The value of a cookie of the request; empty if it has none."""
    try:
        found = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return found[name].value if name in found else ""


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse a write that a page of another site sends."""
    if headers.get("origin", "") != f"https://{headers.get('host', '')}":
        raise Forbidden("the request does not come from a page of this dashboard (Origin)")
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise Forbidden("the request does not come from a page of this dashboard (Sec-Fetch-Site)")


def check_write(headers: Mapping[str, str], session: Session) -> None:
    """Refuse a write that no page of this session sends."""
    check_origin(headers)
    if not same(headers.get(CSRF_HEADER, ""), session.csrf):
        raise Forbidden(f"the {CSRF_HEADER} header is missing or wrong; reload the page")

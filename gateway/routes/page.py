"""GET / and what belongs to it: a chat and live charts in the browser, over the same API as everybody's.

The files hold no data, so they need no key; what the page asks for does.
"""

from gateway.page_files import PageFile, page_files
from gateway.responses import encode_headers, send_body
from gateway.routes.endpoint import Exchange

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cache-Control": "no-cache",  # may be kept, but is asked for each time: it must fit the server's version
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def page(exchange: Exchange) -> None:
    """One file, or 304 when the browser has it."""
    file = page_files()[exchange.request.scope["path"]]
    headers = {**HEADERS, "ETag": file.etag}
    if _is_known(exchange.request.headers.get("if-none-match", ""), file):
        await exchange.send({"type": "http.response.start", "status": 304, "headers": encode_headers(headers)})
        await exchange.send({"type": "http.response.body"})
        return
    await send_body(exchange.send, 200, file.body, file.content_type, headers)


def _is_known(if_none_match: str, file: PageFile) -> bool:
    """RFC 9110, 13.1.2: compared weakly."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or file.etag in tags

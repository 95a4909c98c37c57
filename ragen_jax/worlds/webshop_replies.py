"""Replies of the shopping game.

In: any text. Out: a keyword and what is in its brackets, or the other way round.
"""

SEARCH, CLICK = KEYWORDS = ("search", "click")
# Longer replies are not read; queries are cut to fit.
MAX_REPLY_CHARS = 2_000
MAX_QUERY_CHARS = 1_000


def read_reply(reply: str) -> tuple[str, str] | None:
    """The keyword of a reply and what is in its brackets, in lower case with single
    blanks; None if it is neither a search nor a click.

    A query has no brackets, so that `search[a] click[b]` is not one; names that can be
    clicked may have some.
    """
    if len(reply) > MAX_REPLY_CHARS:
        return None
    keyword, _, rest = reply.strip().partition("[")
    keyword, content = keyword.strip().lower(), " ".join(rest[:-1].lower().split())
    if keyword not in KEYWORDS or not rest.endswith("]") or not content:
        return None
    if keyword == SEARCH and ("[" in content or "]" in content):
        return None
    return keyword, content


def write_search(words: str) -> str:
    """A search that `read_reply` reads, if the words are more than brackets."""
    bare = words.replace("[", " ").replace("]", " ")
    return f"{SEARCH}[{bare[:MAX_QUERY_CHARS].strip()}]"


def write_click(name: str) -> str:
    """A click that `read_reply` reads, on a name of a page."""
    return f"{CLICK}[{name}]"

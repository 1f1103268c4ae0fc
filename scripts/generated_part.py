"""Puts what a script makes into a page, between `<!-- NAME: … -->` and `<!-- end of NAME -->`."""


def replace_part(page: str, name: str, part: str) -> str:
    """The page with `part` between the two marks. Raises ValueError when a mark is missing."""
    begin = page.index("\n", page.index(f"<!-- {name}:")) + 1
    end = page.index(f"<!-- end of {name} -->", begin)
    return f"{page[:begin]}\n{part}\n\n{page[end:]}"

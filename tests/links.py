"""Links between documents: what they point at has to be there, so that no network is needed to check them."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$|(?<!`)(`+)(?!`)[^\n]*?(?<!`)\2(?!`)", re.M | re.S)
LINK = re.compile(r"\]\(([^()\s]+)\)")
CARD = re.compile(r"^:link: (\S+)\n:link-type: doc$", re.M)
TOCTREE = re.compile(r"^(`{3,}|:{3,})\{toctree\}\n(.*?)^\1$", re.M | re.S)


def documents(root: Path = ROOT) -> dict[Path, str]:
    """All documents: the pages of docs/, and those beside the code."""
    beside = ("README.md", "CONTRIBUTING.md", "jaxformer/parity/diagnose/README.md")
    pages = (path for path in sorted((root / "docs").rglob("*.md")) if "_build" not in path.parts)
    return {path: path.read_text("utf-8") for path in (*pages, *(root / name for name in beside)) if path.exists()}


def slugs(text: str) -> set[str]:
    """Anchors of a document's headings, as code hosts and MyST name them, and labels that it sets itself."""
    found: set[str] = set(re.findall(r"^\(([\w-]+)\)=$", text, re.M))
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.M | re.S), re.M):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "]", heading).lower()).replace(" ", "-")
        found.add(next(name for n in range(99) if (name := f"{slug}-{n}" if n else slug) not in found))
    return found


def wrong_links(root: Path = ROOT) -> Iterator[str]:
    """A line for each link of a document to a file or a heading that is not there."""
    texts = documents(root)
    for path, text in texts.items():
        prose = CODE.sub("", text)
        targets = [*LINK.findall(prose), *(f"{name}.md" for name in CARD.findall(prose))]
        for target in targets:
            if re.match(r"https?:|mailto:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            known = texts.get(file) or (file.read_text("utf-8") if file.suffix == ".md" and file.is_file() else "")
            if not file.exists() or (anchor and anchor not in slugs(known)):
                yield f"{path.relative_to(root)}: {target}"


def pages_of_toctrees(root: Path = ROOT) -> set[Path]:
    """The pages that the site's navigation leads to, from its first page on."""
    found, left = set[Path](), [root / "docs/index.md"]
    while left:
        page = left.pop()
        if page in found or not page.exists():
            continue
        found.add(page)
        for _, inside in TOCTREE.findall(page.read_text("utf-8")):
            for entry in re.findall(r"^(?!:)(?:.*<)?([^\s<>]+?)>?$", inside, re.M):
                left += page.parent.glob(f"{entry.removesuffix('.md')}.md")
    return found

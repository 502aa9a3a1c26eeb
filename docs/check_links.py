"""Check that every link between pages of the built site leads somewhere: check_links.py FOLDER."""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

root = Path(sys.argv[1]).resolve()
pages = {page: page.read_text() for page in root.rglob("*.html") if "_static" not in page.parts}
anchors = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
broken = []
for page, text in pages.items():
    for link in re.findall(r'\b(?:href|src)="([^"]+)"', text):
        if re.match(r"[a-z]+:|//", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
        is_missing = anchor and target in anchors and unquote(anchor) not in anchors[target]
        if not target.exists() or is_missing:
            broken.append(f"{page.relative_to(root)}: {link}")
print(f"{len(pages)} pages, {len(broken)} broken links")
sys.exit("\n".join(broken) or 0)

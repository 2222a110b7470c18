#!/usr/bin/env python3
"""Whether the links of the built site lead somewhere.

usage: check_links.py HTML

Links within the site must lead to a page that is there, and to an id that it has. Pictures,
scripts and styles must be files of the site. Links to elsewhere are not followed, only listed:
HTML/../external_links.txt.
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in ("img", "script", "source", "iframe") and values.get("src"):
            self.loads.append(values["src"])
        elif tag == "link" and values.get("rel") != "canonical" and values.get("href"):
            self.loads.append(values["href"])


def check(root):
    """Findings, and the links to elsewhere with the pages that have them."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in root.rglob("*.html")}
    findings, external = [], {}
    for path, page in pages.items():
        name = path.relative_to(root).as_posix()
        for link in page.links + page.loads:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme in ("data", "mailto", "javascript"):
                continue
            if parts.scheme or parts.netloc:
                external.setdefault(link, []).append(name)
                if link in page.loads:
                    findings.append(f"{name}: loads {link} from elsewhere")
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() \
                if parts.path else path
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.is_file():
                findings.append(f"{name}: the link {link} leads nowhere")
            elif anchor and target in pages and anchor not in pages[target].ids:
                findings.append(f"{name}: the link {link} names an id that its page lacks")
    return len(pages), sorted(set(findings)), external


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    count, findings, external = check(root)
    (root.parent / "external_links.txt").write_text(
        "".join(f"{link}\t{' '.join(sorted(set(where)))}\n"
                for link, where in sorted(external.items())), encoding="utf-8")
    print("\n".join(findings))
    if not count or findings:
        sys.exit(f"{root}: {len(findings)} dead links in {count} pages")
    print(f"{count} pages without a dead link; {len(external)} links to elsewhere are listed in "
          f"{root.parent / 'external_links.txt'}")


if __name__ == "__main__":
    main()

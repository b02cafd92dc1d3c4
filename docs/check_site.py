"""Check the built site in a browser: `make docs && python docs/check_site.py [--shots FOLDER]`.

Every page is loaded at a width of 390 and of 1400 pixels. Nothing may be wider than the page, no picture may be broken,
and no code outside of the sources may be clipped at 1400 pixels. Every internal link and anchor must lead somewhere.
`--shots` writes pictures of some pages at both widths, light and dark. Needs Chromium: `apt-get install chromium`.
"""

from __future__ import annotations

import argparse
import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SITE = Path(__file__).resolve().parent.parent / "build" / "docs"
NARROW, WIDE = 390, 1400
SHOTS = (
    "index.html",
    "tutorials/many-envs.html",
    "tutorials/jobs.html",
    "explanation/design.html",
    "explanation/benchmarks.html",
    "glossary.html",
    "reference/api/vecenv.ShmemVectorEnv.html",
)
HARNESS = """<!doctype html><meta charset="utf-8"><body style="margin:0"><pre id="out" style="margin:0"></pre><script>
const pages = %(pages)s, found = {};
localStorage.setItem("theme", "%(theme)s");
async function look(page) {
  const frame = document.createElement("iframe");
  frame.style = "border:0;width:%(width)dpx;height:%(height)dpx";
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const inside = frame.contentDocument, root = inside.documentElement;
  const broken = [...inside.images].filter(each => !each.complete || !each.naturalWidth).map(each => each.src);
  const code = %(width)d > 1000 && !/_modules/.test(page) ? inside.querySelectorAll("pre") : [];
  const boxes = [root, ...inside.querySelectorAll(".content"), ...code];
  const wide = boxes.filter(each => each.scrollWidth > each.clientWidth);
  found[page] = {wide: wide.map(each => [each.className || each.tagName, each.scrollWidth, each.clientWidth]), broken};
  if (!%(keep)s) frame.remove();
}
(async () => { for (const page of pages) await look(page);
  if (!%(keep)s) document.getElementById("out").textContent = JSON.stringify(found); })();
</script>"""


class Page(HTMLParser):
    """Anchors and links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.targets: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {name for name in (found.get("id"), found.get("name") if tag == "a" else None) if name}
        self.targets += [value for key in ("href", "src") if (value := found.get(key))]


def broken_links() -> Iterator[str]:
    """Yield a line for each internal link that leads nowhere."""
    pages = {path: Page(path) for path in SITE.rglob("*.html")}
    for path, page in pages.items():
        for target in dict.fromkeys(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            where = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not where.is_file():
                yield f"{path.relative_to(SITE)}: {target} is not a file"
            elif where in pages and anchor not in pages[where].anchors:
                yield f"{path.relative_to(SITE)}: {target} is not an anchor"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Server of the site, and of the page that loads its pages in turn."""

    harness = ""

    def do_GET(self) -> None:
        if self.path == "/harness":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(self.harness.encode())
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


def browse(server: http.server.ThreadingHTTPServer, *arguments: str) -> str:
    """Open the harness in Chromium, and return the output."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium: apt-get install chromium")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=120000")
    command = [browser, *options, *arguments, f"http://127.0.0.1:{server.server_port}/harness"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def harness(pages: list[str], width: int, height: int, *, theme: str = "light", keep: bool = False) -> str:
    flag = "true" if keep else "false"
    return HARNESS % {"pages": json.dumps(pages), "width": width, "height": height, "theme": theme, "keep": flag}


def wide_faults(server: http.server.ThreadingHTTPServer, width: int) -> Iterator[str]:
    """Yield a line for each page that is too wide for a window, clips code, or has a broken picture."""
    pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    Handler.harness = harness(pages, width, 800)
    printed = browse(server, "--dump-dom")
    found = json.loads(html.unescape(re.search(r'<pre id="out"[^>]*>(.*?)</pre>', printed, re.DOTALL)[1]))
    assert list(found) == pages
    for page, seen in found.items():
        yield from (f"{page}: {box} is {needed} pixels wide, shown in {has}" for box, needed, has in seen["wide"])
        yield from (f"{page}: {picture} is not shown" for picture in seen["broken"])


def take_shots(server: http.server.ThreadingHTTPServer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in SHOTS:
        for width, height in ((WIDE, 1800), (NARROW, 2400)):
            for theme in ("light", "dark"):
                Handler.harness = harness([page], width, height, theme=theme, keep=True)
                file = folder / f"{Path(page).stem}-{width}-{theme}.png"
                browse(server, f"--screenshot={file}", f"--window-size={max(width, 500)},{height}")
                print(file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shots", type=Path, metavar="FOLDER", help="write pictures of some pages there")
    options = parser.parse_args()
    faults = list(broken_links())
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        faults += [f"{width}: {fault}" for width in (NARROW, WIDE) for fault in wide_faults(server, width)]
        if options.shots:
            take_shots(server, options.shots)
        server.shutdown()
    print("\n".join(faults) or f"{len(list(SITE.rglob('*.html')))} pages: no page too wide, no broken link or picture")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

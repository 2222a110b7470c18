"""The documentation site, as a browser without a window shows it. ./dev docs runs this.

SITE_BUILD is the folder that has html/; SITE_BROWSER a Chromium, or empty where none is had.
"""

import functools
import html.parser
import http.server
import os
import pathlib
import re
import threading

import pytest
from playwright import sync_api

HTML = pathlib.Path(os.environ["SITE_BUILD"]) / "html"
BROWSER = os.environ.get("SITE_BROWSER", "")
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
INTERFACES = sorted(path.relative_to(HTML).as_posix() for path in HTML.glob("api/**/*.html"))
PAGES = [*sorted(path.name for path in HTML.glob("*.html")), "benchmarks/h100.html",
         "api/cpp.html", "api/vmm/pool/pool.h.html", "api/vmm/c/pool.h.html",
         "api/python/vmmshare/index.html", "api/python/vmmshare/torch/index.html",
         "source/docs/examples/hello.cc.html"]
# They only include others, or lead to them.
WITHOUT_ENTRIES = {"api/cpp.html", "api/c.html", "api/vmm/vmm.h.html", "api/vmm/c/vmmshare.h.html"}
# Of Markdown, reStructuredText and Doxygen.
MARKUP = re.compile(r"\*\*|``|`\w|\]\(|:(?:doc|ref|class):|[\\@](?:file|code|endcode|brief)\b")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Article(html.parser.HTMLParser):
    """Of a page: its prose, without code and signatures, and how many signatures it has."""

    def __init__(self, name):
        super().__init__()
        self.prose, self.entries, self.inside, self.code = "", 0, 0, 0
        self.feed((HTML / name).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.inside += tag == "article"
        self.code += tag in ("code", "pre", "dt")
        self.entries += tag == "dt" and "sig " in (dict(attrs).get("class") or "")

    def handle_endtag(self, tag):
        self.inside -= tag == "article"
        self.code -= tag in ("code", "pre", "dt")

    def handle_data(self, data):
        if self.inside and not self.code:
            self.prose += data


@pytest.fixture(scope="session")
def site():
    handler = functools.partial(Quiet, directory=str(HTML))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def chromium():
    if not BROWSER:
        # Where nobody reads what was skipped, that is no success.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "no browser: neither Chromium nor Google Chrome is installed here")
    with sync_api.sync_playwright() as playwright:
        # Without a sandbox: root has none, and it sees our own pages only.
        browser = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"],
            timeout=180_000)
        yield browser
        browser.close()


@pytest.fixture(params=[DESK, PHONE], ids=["desk", "phone"])
def page(request, chromium, site):
    """A page, and the assertion that nothing was asked of another machine, and nothing failed."""
    context = chromium.new_context(viewport=request.param, base_url=site)
    context.set_default_timeout(60_000)
    wrong = []

    def on_request(asked):
        if not asked.url.startswith((site, "data:", "blob:")):
            wrong.append(f"asked {asked.url}")

    def on_response(answer):
        if answer.status >= 400:
            wrong.append(f"{answer.status} for {answer.url}")

    context.on("request", on_request)
    context.on("response", on_response)
    context.on("weberror", lambda error: wrong.append(f"script: {error.error}"))
    page = context.new_page()
    yield page
    context.close()
    assert wrong == []


def beyond_the_window(page):
    """What sticks out of the window and of every box that scrolls. The theme cuts it off on a
    phone, so that the page is no wider for it."""
    return page.evaluate("""() => [...document.querySelectorAll("article *")].filter(one => {
        if (one.getBoundingClientRect().right <= window.innerWidth + 1) return false;
        for (let box = one.parentElement; box.tagName != "ARTICLE"; box = box.parentElement)
            if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return false;
        return true;
    }).map(one => one.outerHTML.slice(0, 100))""")


def test_there_are_pages_of_each_interface():
    for folder in "api/vmm/pool", "api/vmm/c", "api/fabric", "api/platform", "api/python":
        assert [name for name in INTERFACES if name.startswith(folder + "/")], folder


@pytest.mark.parametrize("name", INTERFACES)
def test_no_interface_is_empty(name):
    assert bool(Article(name).entries) == (name not in WITHOUT_ENTRIES)


@pytest.mark.parametrize("name", [name for name in PAGES + INTERFACES if "source/" not in name])
def test_no_markup_shows_through(name):
    assert MARKUP.findall(Article(name).prose) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_scrolls_sideways(page, name):
    page.goto(f"/{name}")
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert beyond_the_window(page) == []
    pictures = page.locator("article img")
    for i in range(pictures.count()):
        assert pictures.nth(i).evaluate("image => image.decode().then(() => image.naturalWidth)")


def test_the_front_page_leads_to_what_the_reader_wants(page):
    page.goto("/index.html")
    assert "vmmshare" in page.title()
    for text, url in [("the tutorial", "sharing.html"), ("pools", "pool.html"),
                      ("weights", "weights.html"), ("a pipeline", "pipeline.html"),
                      ("a job", "jobs.html"), ("doctor", "doctor.html"),
                      ("from legacy IPC, call by call", "legacy_ipc.html"),
                      ("for PyTorch users", "pytorch.html"), ("Windows", "windows.html")]:
        page.goto("/index.html")
        page.locator("article table").get_by_role("link", name=text, exact=True).click()
        page.wait_for_url(f"**/{url}")


def test_a_name_in_a_table_stays_whole(page):
    page.goto("/index.html")
    for text in "symmetric.cc", "torch_state_dict.py", "shared_blocks.cc":
        name = page.locator("article table").get_by_role("link", name=text, exact=True)
        assert name.evaluate("link => link.getClientRects().length") == 1


def test_the_front_page_leads_to_the_interfaces(page):
    for text, url in ("C++", "api/cpp.html"), ("C", "api/c.html"), ("Python", "index.html"):
        page.goto("/index.html")
        page.locator("#interfaces").get_by_role("link", name=text, exact=True).click()
        page.wait_for_url(f"**/{url}")
        assert page.locator("article li").count() > 5


def test_words_are_typed_and_found(page):
    page.goto("/pool.html")
    if page.viewport_size == PHONE:
        page.locator("header label.nav-overlay-icon").click()
    page.get_by_placeholder("Search").fill("cudaIpcOpenMemHandle")
    page.keyboard.press("Enter")
    page.locator("#search-results").get_by_role("link", name="From legacy CUDA IPC").click()
    page.wait_for_url("**/legacy_ipc.html*")


def test_a_source_is_found_after_what_explains_it(page):
    page.goto("/search.html?q=vmmshare_pool_create")
    page.get_by_text("Search finished").wait_for()
    texts = page.locator("#search-results li.kind-text a")
    links = texts.evaluate_all("all => all.map(one => one.pathname)")
    sources = [link.startswith("/source/") for link in links]
    assert True in sources and False in sources
    assert sources == sorted(sources)


@pytest.mark.parametrize("words,found", [("PrimaryContext", "device.h"),
                                         ("vmmshare_pool_create", "vmm/c/pool.h"),
                                         ("cudaIpcOpenMemHandle", "legacy CUDA IPC")])
def test_the_search_finds(page, words, found):
    page.goto(f"/search.html?q={words}")
    page.locator("#search-results li").filter(has_text=found).first.wait_for()


@pytest.mark.parametrize("name,signature,says", [
    ("api/vmm/pool/pool.h.html", "Allocate", "RESOURCE_EXHAUSTED"),
    ("api/vmm/c/pool.h.html", "vmmshare_pool_allocate", "RESOURCE_EXHAUSTED"),
    ("api/vmm/keeper/keeper.h.html", "ImportOptions import = {}", "NOT_FOUND"),
    ("api/python/vmmshare/index.html", "connect", "NotFound")])
def test_an_interface_has_types_errors_and_its_source(page, name, signature, says):
    page.goto(f"/{name}")
    entry = page.locator("dl").filter(has=page.locator("dt.sig", has_text=signature)).last
    assert signature in entry.inner_text()
    text = page.locator("article").inner_text()
    assert says in text
    link, source = (("The header itself", "#ifndef VMMSHARE_") if name.endswith(".h.html") else
                    ("The source", "def connect("))
    page.locator("article").get_by_role("link", name=link, exact=True).click()
    page.wait_for_url("**/source/**")
    assert source in page.locator("article").inner_text()

"""Sphinx's configuration. ./dev docs runs it: SITE_BUILD is build/docs, SITE_VERSION the version."""

import os
import pathlib
import re

from sphinx import addnodes

build = pathlib.Path(os.environ["SITE_BUILD"])
project = "vmmshare"
author = "the vmmshare authors"
version = release = os.environ["SITE_VERSION"]

extensions = ["myst_parser", "breathe", "autoapi.extension", "sphinx_copybutton"]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["api/python/vmmshare/_core/**"]
nitpicky = False

myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]

breathe_projects = {"cpp": str(build / "xml-cpp/xml"), "c": str(build / "xml-c/xml")}
breathe_default_project = "cpp"
breathe_domain_by_file_pattern = {"*/vmm/c/*.h": "c"}
breathe_show_include = False
primary_domain = "cpp"
highlight_language = "text"
smartquotes_action = "qe"  # -- of an option is no dash.
# A class is declared in one header and named in others; C has structures and
# functions of one name.
suppress_warnings = ["duplicate_declaration.cpp", "duplicate_declaration.c",
                     "autoapi.python_import_resolution",
                     # Examples in comments leave things out by "...".
                     "misc.highlighting_failure",
                     # Sources are linked where they are named.
                     "toc.not_included",
                     # The benchmarks' own pages.
                     "myst.header"]

autoapi_dirs = [str(build / "python" / "vmmshare")]
autoapi_root = "api/python"
autoapi_add_toctree_entry = False
autoapi_options = ["members", "undoc-members", "show-module-summary", "imported-members"]
autoapi_member_order = "groupwise"
autoapi_keep_files = False
autoapi_file_patterns = ["*.pyi", "*.py"]

html_theme = "furo"
html_title = f"vmmshare {version}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_static_path = [str(pathlib.Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_search_scorer = str(pathlib.Path(__file__).parent / "search.js")


def as_rst(docstring):
    """A docstring of ours: prose in which `x` is code and what is indented is an example."""
    out, in_code = [], False
    for line in docstring.splitlines():
        if not line.strip():
            out.append("")
        elif line.startswith("    ") and (in_code or not out or not out[-1]):
            if not in_code:
                out += ["", ".. code-block:: python", ""]
            in_code = True
            out.append(line)
        else:
            in_code = False
            parts = re.split(r"`([^`]*)`", line.strip())
            parts[::2] = [re.sub(r"([*|\\_])", r"\\\1", part) for part in parts[::2]]
            parts[1::2] = [f"``{part}``" for part in parts[1::2]]
            out.append("".join(parts))
    # The first line is what tables of members say: the first sentence, whole.
    first = out.index("") if "" in out else len(out)
    out[:first] = re.split(r"(?<=[.;])\s+", " ".join(out[:first]), maxsplit=1)
    return "\n".join(out)


def on_member(app, what, name, obj, skip, options):
    if obj.docstring and not getattr(obj, "as_rst", False):
        obj.docstring, obj.as_rst = as_rst(obj.docstring), True
        if what in ("module", "package"):
            path = obj.id.replace(".", "/") + ("/__init__" if what == "package" else "")
            if (build / f"stage/source/vmm/python/{path}.py.md").exists():
                obj.docstring += f"\n\n:doc:`The source </source/vmm/python/{path}.py>`"
    return skip


def drop_foreign(app, doctree):
    """Names of others lead nowhere: to look for each in all of the interface takes minutes."""
    foreign = re.compile(r"(std|absl|CU\w+|u?int\d+_t|size_t|(std|absl)::.*)$")
    for name in list(doctree.findall(addnodes.pending_xref)):
        if name.get("refdomain") in ("c", "cpp") and foreign.match(name["reftarget"]):
            name.replace_self(name.children)


def setup(app):
    app.connect("autoapi-skip-member", on_member)
    app.connect("doctree-read", drop_foreign)

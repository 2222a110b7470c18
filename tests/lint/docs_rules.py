"""Rules for the documents. Each takes a Tree and yields one finding a breach."""

import posixpath
import re

from tree import lines_of

FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.M | re.S)


def slug(heading):
    """The anchor that GitHub gives to a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    plain = re.sub(r"[^\w\- ]", "", plain.strip().lower())
    return plain.replace(" ", "-")


def anchors(text):
    seen, found = {}, set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", FENCE.sub("", text), re.M):
        base = slug(heading)
        count = seen.get(base, 0)
        seen[base] = count + 1
        found.add(base if count == 0 else f"{base}-{count}")
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def links_resolve(tree):
    """Every relative link leads to a file, and its anchor to a heading."""
    for name in tree.sources(".md"):
        text = FENCE.sub("", tree.text(name))
        text = re.sub(r"`[^`\n]*`", "", text)
        links = re.findall(r"\]\(\s*<?([^)>\s]+)>?[^)]*\)", text)
        links += re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.M)
        for link in links:
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            path, _, anchor = link.partition("#")
            target = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), path)) if path else name
            if not (tree.has(target) or tree.has_folder(target)):
                yield f"{name}: the link {link} leads nowhere"
            elif anchor and target.endswith(".md") and anchor not in anchors(tree.text(target)):
                yield f"{name}: the link {link} names a heading that {target} lacks"


NAMED_FILE = re.compile(
    r"(?<![\w/.$*{}-])((?:vmm|fabric|platform|tests|bench|docs|\.cmake|\.ci|\.github)"
    r"/[\w./-]*\w\.(?:h|cc|md|py|cmake|json|yml|txt))(?![\w*])")


def named_files_exist(tree):
    """A file of ours that a document names is there."""
    for name in tree.sources(".md"):
        for line, text in lines_of(tree.text(name)):
            for path in NAMED_FILE.findall(text):
                if not tree.has(path):
                    yield f"{name}:{line}: {path} does not exist"


def named_tasks_exist(tree):
    """A task of ./dev that a document names is one."""
    if not tree.has("dev"):
        return
    tasks = set(re.findall(r"^task_(\w+)\(\)", tree.text("dev"), re.M)) | {"help"}
    for name in tree.sources(".md"):
        for line, text in lines_of(tree.text(name)):
            for task in re.findall(r"(?<!\w)\./dev ([a-z]\w*)", text):
                if task not in tasks:
                    yield f"{name}:{line}: ./dev has no task {task}"


QUOTED = "docs/examples/hello.cc"


def readme_quotes_its_example(tree):
    """The example in README.md is the one that is compiled and run."""
    if not tree.has("README.md") or not tree.has(QUOTED):
        return
    if f"```cpp\n{tree.text(QUOTED)}```" not in tree.text("README.md"):
        yield f"README.md: its example is not {QUOTED} to the letter"


RULES = {
    "ReadmeQuotesItsExample": readme_quotes_its_example,
    "LinksResolve": links_resolve,
    "NamedFilesExist": named_files_exist,
    "NamedTasksExist": named_tasks_exist,
}

"""Rules for presets and manifests that no machine of CI's runs. Each takes a Tree and
yields one finding a breach."""

import json
import posixpath
import re

from tree import lines_of

PRESETS = "CMakePresets.json"
# What find_package() looks for, and the port of vcpkg that has it.
PORTS = {"absl": "abseil", "GTest": "gtest", "benchmark": "benchmark", "nlohmann_json": "nlohmann-json"}


def parsed(tree, name):
    """The JSON of a file, and no finding; or none, and what is wrong with it."""
    try:
        return json.loads(tree.text(name)), None
    except ValueError as error:
        return None, f"{name}: is no JSON: {error}"


def inherited(presets, name, field):
    """A field of the preset `name`, or of the first it inherits it from."""
    preset = presets.get(name, {})
    if field in preset:
        return preset[field]
    parents = preset.get("inherits", [])
    for parent in [parents] if isinstance(parents, str) else parents:
        found = inherited(presets, parent, field)
        if found is not None:
            return found
    return None


def presets_are_whole(tree):
    """Build and test presets name a configure preset; each of that has a build; those for MSVC are for
    Windows alone, have cl, and where vcpkg's manifest lies; the workflow takes what is there."""
    if not tree.has(PRESETS):
        return
    content, wrong = parsed(tree, PRESETS)
    if wrong:
        yield wrong
        return
    presets = {p["name"]: p for p in content.get("configurePresets", [])}
    built = {p.get("configurePreset") for p in content.get("buildPresets", [])}
    for kind in ("buildPresets", "testPresets"):
        of_kind = {p["name"]: p for p in content.get(kind, [])}
        for preset in of_kind.values():
            named = inherited(of_kind, preset["name"], "configurePreset")
            if named not in presets and not preset.get("hidden"):
                yield f"{PRESETS}: {kind}: {preset['name']} is of '{named}', which is no configure preset"
    for name, preset in presets.items():
        if not preset.get("hidden") and name not in built:
            yield f"{PRESETS}: {name} has no build preset"
        if not name.startswith("msvc"):
            continue
        condition = inherited(presets, name, "condition") or {}
        if (condition.get("lhs"), condition.get("rhs")) != ("${hostSystemName}", "Windows"):
            yield f"{PRESETS}: {name} is not for Windows alone"
        own = preset.get("cacheVariables", {})
        compiler = own.get("CMAKE_CXX_COMPILER") or (
            inherited(presets, preset.get("inherits", ""), "cacheVariables") or {}).get("CMAKE_CXX_COMPILER")
        if compiler != "cl":
            yield f"{PRESETS}: {name} compiles with '{compiler}', not cl"
        if "vcpkg" in preset.get("toolchainFile", ""):
            folder = own.get("VCPKG_MANIFEST_DIR", "").removeprefix("${sourceDir}/")
            if not tree.has(f"{folder}/vcpkg.json"):
                yield f"{PRESETS}: {name}: VCPKG_MANIFEST_DIR, '{folder}', holds no vcpkg.json"
    for workflow in tree.sources(".yml"):
        for line, text in lines_of(tree.text(workflow)):
            for named in re.findall(r"(?:cmake|ctest)\b.* --preset[ =](\S+)", text):
                if named not in presets:
                    yield f"{workflow}:{line}: {PRESETS} has no preset {named}"


def dependencies(manifest):
    return {d if isinstance(d, str) else d.get("name") for d in manifest.get("dependencies", [])}


def manifests_name_what_there_is(tree):
    """vcpkg's manifests: the one that builds this repository has what CMake looks for, a port is in a folder
    of its name, and every overlay leads to a port that the manifest beside it wants."""
    looked_for = set()
    if tree.has(".cmake/Dependencies.cmake"):
        looked_for = set(re.findall(r"find_package\((\w+)(?: [\d.]+)? QUIET\)", tree.text(".cmake/Dependencies.cmake")))
    for name in tree.files:
        base, folder = posixpath.basename(name), posixpath.dirname(name)
        if base not in ("vcpkg.json", "vcpkg-configuration.json"):
            continue
        manifest, wrong = parsed(tree, name)
        if wrong:
            yield wrong
            continue
        if base == "vcpkg-configuration.json":
            wanted = parsed(tree, f"{folder}/vcpkg.json")[0] if tree.has(f"{folder}/vcpkg.json") else {}
            for overlay in manifest.get("overlay-ports", []):
                where = posixpath.normpath(posixpath.join(folder, overlay))
                # A folder with a manifest of its own is one port to vcpkg, not a set of them.
                found = {port for port in dependencies(wanted or {})
                         if tree.has(f"{where}/{port}/portfile.cmake")}
                if not found or tree.has(f"{where}/vcpkg.json"):
                    yield f"{name}: the overlay {overlay} holds no port that {folder}/vcpkg.json wants"
        elif tree.has(f"{folder}/portfile.cmake"):
            if manifest.get("name") != posixpath.basename(folder):
                yield f"{name}: the port '{manifest.get('name')}' is not in a folder of its name"
            if "windows" not in manifest.get("supports", "windows"):
                yield f"{name}: does not support Windows, which docs/windows.md says it does"
        elif "name" not in manifest:
            for package in sorted(looked_for):
                if PORTS.get(package) not in dependencies(manifest):
                    yield f"{name}: CMake looks for {package}, and its port {PORTS.get(package)} is missing"


NOTICES = ".packaging/third-party-notices.txt"
COPYRIGHT = ".packaging/debian/copyright"
# What puts licences into a package that users get.
CARRIERS = (".cmake/Install.cmake", ".packaging/conan/conanfile.py", ".packaging/conda/recipe.yaml",
            ".packaging/vcpkg/vmmshare/portfile.cmake", "vmm/python/pyproject.toml",
            "vmm/python/sdist_backend.py")


def packages_have_the_notices(tree):
    """What makes a package takes along the notices of others' code, and Debian's copyright names all holders."""
    for name in CARRIERS:
        if tree.has(name) and posixpath.basename(NOTICES) not in tree.text(name):
            yield f"{name}: does not take {NOTICES} along"
    if not tree.has(COPYRIGHT):
        return
    if not tree.has(NOTICES):
        yield f"{NOTICES}: is missing"
        return
    stated = tree.text(COPYRIGHT)
    for line, text in lines_of(tree.text(NOTICES)):
        holder = re.match(r"Copyright (?:\(c\) )?([\d-]+) ([^<,]+)", text)
        if holder and f"{holder[1]}, {holder[2].strip()}" not in stated:
            yield f"{COPYRIGHT}: lacks '{holder[1]}, {holder[2].strip()}' of {NOTICES}:{line}"


RULES = {
    "PackagesHaveTheNotices": packages_have_the_notices,
    "PresetsAreWhole": presets_are_whole,
    "ManifestsNameWhatThereIs": manifests_name_what_there_is,
}

"""Rules for docs/examples/containers: what a Containerfile, a compose file and Kubernetes
manifests must say for two containers to share memory. Each yields one finding a breach."""

import posixpath
import re

FOLDER = "NVIDIA_DRA_LOCAL_IPC_DIR"
DRA_FOLDER = "/run/nvidia-dra/local-ipc"  # Where NVIDIA's DRA driver mounts it.
PLACE = "docs/examples/containers"
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "LABEL", "RUN", "USER",
                "WORKDIR"}
SERVICE = {"build", "cap_drop", "command", "depends_on", "deploy", "environment", "healthcheck",
           "image", "init", "read_only", "user", "volumes"}
POD = {"containers", "initContainers", "resourceClaims", "restartPolicy", "securityContext",
       "volumes"}
CONTAINER = {"command", "env", "image", "name", "resources", "securityContext", "volumeMounts"}
VERSIONS = {"Pod": "v1", "ResourceClaimTemplate": "resource.k8s.io/v1"}
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def instructions(text):
    """Pairs of an instruction and its words; a backslash joins lines."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", text))
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, words = line.partition(" ")
        yield name, words.split()


def environment_of(text):
    return dict(word.partition("=")[::2] for name, words in instructions(text) if name == "ENV"
                for word in words)


def user_of(text):
    users = [words[0] for name, words in instructions(text) if name == "USER"]
    return users[-1] if users else "0"


def programs_of(text):
    """What the image has in a folder of PATH."""
    return {posixpath.basename(words[1]) for name, words in instructions(text)
            if name == "COPY" and words[-1] == "/usr/local/bin/"}


def containerfile(text, exists, was_built):
    """exists(PATH) in the sources; was_built(PATH) below build/PRESET."""
    stages, used, built = [], set(), False
    for name, words in instructions(text):
        if name not in INSTRUCTIONS:
            yield f"{name} is no instruction that this file needs"
        if name == "FROM":
            if words[1:2] == ["AS"]:
                stages.append(words[2])
            used.add(words[0])
        if name == "RUN" and words[0] == "./dev":
            built = words[1] == "build"
        if name != "COPY":
            continue
        stage = re.match(r"--from=(.*)", words[0])
        if not stage:
            for source in words[:-1]:
                if not exists(source):
                    yield f"COPY {source}: there is none"
        elif stage[1] not in stages:
            yield f"COPY --from={stage[1]}: no stage before it has that name"
        else:
            used.add(stage[1])
            path = words[1].partition("/build/release/")[2]
            if not built or not path or not was_built(path):
                yield f"COPY {words[1]}: ./dev build makes no such file"
    for stage in stages:
        if stage not in used:
            yield f"nothing uses the stage {stage}"
    if user_of(text).split(":")[0] in ("0", "root"):
        yield "the last USER is root"
    folder = environment_of(text).get(FOLDER, "")
    if f"install -d -m 1777 {folder}" not in text:
        yield f"{FOLDER} is '{folder}', and nothing makes that folder with mode 1777"


def unknown(where, keys, known):
    return [f"{where}: {key} is not a key of it" for key in sorted(set(keys) - known)]


def same(what, values):
    if len({repr(value) for value in values}) > 1:
        yield f"{what} differ: {values}"


def commands(where, words, image):
    """A command is of the image's programs, or a shell with them."""
    known = programs_of(image) | {"sh", "mkdir", "test"}
    if words[0] not in known:
        yield f"{where}: the image has no {words[0]}"
    tickets = set(re.findall(r"(?<![\w-])/run/\S*\.ticket", " ".join(words)))
    if words[0] != "mkdir" and len(tickets) != 1:
        yield f"{where}: names {sorted(tickets)}; expected one file with the ticket"
    return tickets


def compose(data, image, exists):
    services = data["services"]
    folder = environment_of(image)[FOLDER]
    tickets = set()
    for name, service in services.items():
        yield from unknown(name, service, SERVICE)
        tickets |= yield from commands(name, service["command"], image)
        context = posixpath.normpath(posixpath.join(PLACE, service["build"]["context"]))
        if context != "." or not exists(service["build"]["dockerfile"]):
            yield f"{name}: is built of {service['build']}, and not of the top of the sources"
        if service["environment"].get(FOLDER) != folder:
            yield f"{name}: {FOLDER} is not the image's, {folder}"
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            if source not in data["volumes"]:
                yield f"{name}: there is no volume {source}"
            if target != folder or volume.count(":") > 1:
                yield f"{name}: {volume} must be {folder}, and writable"
        if service.get("init") is not True:
            yield f"{name}: has no init, so that its program ignores SIGTERM and is killed"
        if service["user"] != user_of(image):
            yield f"{name}: its user is {service['user']}, the image's {user_of(image)}"
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy" and "healthcheck" not in services[other]:
                yield f"{name}: {other} has no healthcheck"
    yield from same("the volumes", [one["volumes"] for one in services.values()])
    yield from same("the tickets' files", sorted(tickets)[:2] if len(tickets) > 1 else [0])
    devices = [device for one in services.values()
               for device in one["deploy"]["resources"]["reservations"]["devices"]]
    if any(device["driver"] != "nvidia" or device["capabilities"] != ["gpu"] for device in devices):
        yield "a device is not [gpu] of nvidia"
    if len(devices) != 2 or devices[0]["device_ids"] == devices[1]["device_ids"]:
        yield "the importer sees the owner's GPU"


def pod(spec, templates, image):
    volumes = {one["name"]: one for one in spec.get("volumes", [])}
    claims = {one["name"]: one["resourceClaimTemplateName"]
              for one in spec.get("resourceClaims", [])}
    containers = spec.get("initContainers", []) + spec["containers"]
    yield from unknown("the pod", spec, POD)
    rights = spec["securityContext"]
    user = str(rights.get("runAsUser"))
    if not rights.get("runAsNonRoot") or user != user_of(image).split(":")[0]:
        yield f"the pod's user is {rights}, the image's {user_of(image)}"
    tickets = set()
    for one in containers:
        where = one["name"]
        yield from unknown(where, one, CONTAINER)
        if not NAME.fullmatch(where):
            yield f"{where} is no name of a container"
        tickets |= yield from commands(where, one["command"], image)
        for mount in one.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"{where}: there is no volume {mount['name']}"
            if mount.get("readOnly"):
                yield f"{where}: {mount['mountPath']} is read-only"
    yield from same("the tickets' files", sorted(tickets)[:2] if len(tickets) > 1 else [0])
    main = spec["containers"]
    for key in "env", "volumeMounts":
        yield from same(f"{key} of the containers", [one.get(key) for one in main])
    if claims:
        yield from dra(main, claims, templates)
    else:
        yield from empty_dir(spec, main[0])


def empty_dir(spec, container):
    folder = {one["name"]: one["value"] for one in container["env"]}[FOLDER]
    mounted = [one["mountPath"] for one in container["volumeMounts"]]
    if not any(folder.startswith(path + "/") for path in mounted):
        yield f"{FOLDER} is {folder}, not in one of {mounted}; an emptyDir itself is refused"
    made = [one["command"] for one in spec.get("initContainers", [])]
    if not any(words[0] == "mkdir" and "0700" in words and words[-1] == folder for words in made):
        yield f"no init container makes {folder} with mode 0700"


def dra(containers, claims, templates):
    for one in containers:
        named = [claim["name"] for claim in one["resources"].get("claims", [])]
        if not named or not set(named) <= set(claims):
            yield f"{one['name']}: its claims are {named}, the pod's {sorted(claims)}"
        if any(variable["name"] == FOLDER for variable in one.get("env", [])):
            yield f"{one['name']}: sets {FOLDER}, which the driver sets"
        if DRA_FOLDER not in " ".join(one["command"]):
            yield f"{one['name']}: uses no file in {DRA_FOLDER}"
    for name in claims.values():
        devices = templates.get(name, {}).get("devices", {})
        opaque = [one["opaque"] for one in devices.get("config", []) if "requests" not in one]
        if not any(one["driver"] == "gpu.nvidia.com" and one["parameters"] == {
                "apiVersion": "resource.nvidia.com/v1beta1", "kind": "LocalIPCConfig",
                "enabled": True} for one in opaque):
            yield f"the template {name} asks for no folder (LocalIPCConfig)"


def kubernetes(documents, image):
    templates = {one["metadata"]["name"]: one["spec"]["spec"] for one in documents
                 if one["kind"] == "ResourceClaimTemplate"}
    for one in documents:
        if VERSIONS.get(one["kind"]) != one["apiVersion"]:
            yield f"{one['kind']} of {one['apiVersion']} is none; there are {VERSIONS}"
        if not NAME.fullmatch(one["metadata"]["name"]):
            yield f"{one['metadata']['name']} is no name"
        if one["kind"] == "Pod":
            yield from pod(one["spec"], templates, image)

"""Tables in Markdown of what the rows measured."""

from ways import SECTIONS

MIB = 1 << 20
ORDERING = [("barrier", "barrier on streams"), ("barrier_call", "barrier, called and waited for"),
            ("one_way", "signals one after the other, each"),
            ("round_trip", "there and back on streams"),
            ("round_trip_call", "there and back, called and waited for")]


def number(value):
    """Three digits that count."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def spread(summary):
    return f"{number(summary['p50'])} ({number(summary['p99'])})"


def size_text(nbytes):
    if nbytes >= 1 << 30:
        return f"{nbytes >> 30} GiB"
    return f"{nbytes >> 20} MiB" if nbytes >= MIB else f"{nbytes >> 10} KiB"


def table(heads, lines):
    head = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    return head + [f"| {' | '.join(line)} |" for line in lines]


def keyed(rows, keep, key):
    """Of each row that measured something: its name, and its figures by key. And all keys."""
    found = [(row["name"], {key(one): one for one in row["figures"] if keep(one)})
             for row in rows]
    keys = list(dict.fromkeys(one for _, figures in found for one in figures))
    return [(name, figures) for name, figures in found if figures], keys


def tensors_table(rows):
    found, keys = keyed(rows, lambda _: True, lambda one: (one["count"], one["nbytes"]))
    keys.sort(key=lambda key: (key[1], key[0]))
    heads = ["ms, p50 (p99); first round"]
    heads += [f"{count:,} x {size_text(nbytes)}" for count, nbytes in keys] + ["reserved, MiB"]
    lines = []
    for name, figures in found:
        reserved = [one["reserved"] for one in figures.values() if one["reserved"]]
        lines.append([name] + [
            f"{spread(figures[key]['ms'])}; {number(figures[key]['first_ms'])}"
            if key in figures else "" for key in keys]
            + [f"{max(reserved) / MIB:,.0f}" if reserved else ""])
    return table(heads, lines)


def jobs_table(rows):
    starts, _ = keyed(rows, lambda one: one["kind"] == "start", lambda one: "start")
    starts = dict(starts)
    found, keys = keyed(rows, lambda one: one["kind"] == "size", lambda one: one["nbytes"])
    heads = ["ms, p50 (p99); first of the size", "start of the job", "its first 2 MiB"]
    heads += [size_text(nbytes) for nbytes in sorted(keys)]
    lines, sizes = [], dict(found)
    for name, start in starts.items():
        figures = sizes.get(name, {})
        lines.append([name, number(start["start"]["start_ms"]),
                      number(start["start"]["first_ms"])] + [
            f"{spread(figures[key]['ms'])}; {number(figures[key]['first_ms'])}"
            if key in figures else "" for key in sorted(keys)])
    return table(heads, lines)


def ordering_table(rows):
    found, _ = keyed(rows, lambda _: True, lambda one: one["kind"])
    heads = ["us, p50 (p99)"] + [text for _, text in ORDERING]
    return table(heads, [[name] + [spread(figures[kind]["us"]) if kind in figures else ""
                                   for kind, _ in ORDERING] for name, figures in found])


TABLES = {"tensors": tensors_table, "jobs": jobs_table, "ordering": ordering_table}


def rounds_text(rows):
    """How many rounds the percentiles are of."""
    found = {}
    for row in rows:
        for one in row["figures"]:
            for unit in ("ms", "us"):
                if unit in one:
                    what = one.get("kind", "")
                    if "nbytes" in one:
                        what = size_text(one["nbytes"])
                        if "count" in one:
                            what = f"{one['count']:,} x {what}"
                    found.setdefault(what, set()).add(one[unit]["count"])
    return "; ".join(f"{what}: {'/'.join(map(str, sorted(counts)))}"
                     for what, counts in found.items())


def markdown(report):
    lines = ["# What people use today", ""]
    if report["partial"]:
        lines += [f"**Partial:** {report['partial']}.", ""]
    if report["quick"]:
        lines += ["**Quick:** says that it works, not how fast.", ""]
    if report["driver"] == "host":
        lines += ["**Host memory: not GPU figures.**", ""]
    lines += [f"{report['date']}, commit {report['commit'] or 'unknown'}. Devices: "
              f"{', '.join(report['devices'])}; driver {report['driver_version']}. "
              f"{', '.join(f'{name} {text}' for name, text in report['versions'].items())}.", ""]
    for section, title in SECTIONS.items():
        rows = [row for row in report["rows"] if row["section"] == section]
        if not rows:
            continue
        lines += [f"## {title}", ""]
        if any(row["figures"] for row in rows):
            lines += TABLES[section](rows) + ["", f"Rounds: {rounds_text(rows)}.", ""]
        lines += notes(rows)
    planted = [row for row in report["rows"] if row["section"] not in SECTIONS]
    return "\n".join(lines + notes(planted)).rstrip() + "\n"


def notes(rows):
    """What each row is, and why what is missing is missing."""
    lines = [f"- {row['name']}: {row['note']}" for row in rows if row["note"]]
    for row in rows:
        if row["status"] != "whole":
            what = "incomplete" if row["figures"] else "no figures"
            lines.append(f"- **{row['name']}, {what}:** {row['why']}")
    return lines + [""] if lines else []

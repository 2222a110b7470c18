"""What is said of a list of times."""


def percentile(times, part):
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, round((len(ordered) - 1) * part))]


def summary(times, unit):
    """p50 and p99 of seconds, in units of `unit` seconds, and how many there were."""
    return {"p50": percentile(times, 0.5) / unit, "p99": percentile(times, 0.99) / unit,
            "count": len(times)}

"""The report: one file as text and the same as JSON, without names and addresses of hosts."""

import json
import re
import time

from .session import BAD

SCHEMA = 1
WORDS = {"same": "ok", "differs": "DIFFERS", "fails": "FAILS", "cannot": "-"}
# Addresses that name no host; versions of firmware and kernels are not in these texts.
HARMLESS = {"0.0.0.0", "127.0.0.1", "198.51.100.1"}
IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{1,4}:){2,7}(?::?[0-9a-f]{1,4}|:)(?:(?::[0-9a-f]{1,4})*)(?![\w:])", re.I)


class Redaction:
    """Replaces the names and addresses that the hosts have, and everything else that looks like an address."""

    def __init__(self, words, wanted):
        self.words, self.wanted = sorted(set(words), key=len, reverse=True), wanted

    def __call__(self, value):
        if not self.wanted or isinstance(value, (int, float)):
            return value
        if isinstance(value, dict):
            return {self(key): self(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(one) for one in value]
        for word in self.words:
            value = re.sub(r"(?<![\w.])" + re.escape(word) + r"(?![\w])", "<host>", value)
        value = IPV4.sub(lambda match: match[0] if match[0] in HARMLESS else "<address>", value)
        return IPV6.sub("<address>", value)


def build(session, facts, version, complete):
    """facts: {"here": …, "peer": …}, of facts.describe, without addresses."""
    rows = list(session.results.values())
    counts = {state: sum(row["state"] == state for row in rows) for state in WORDS}
    return {"schema": SCHEMA, "kit": version, "date": time.strftime("%Y-%m-%d"), "complete": complete, "hosts": facts,
            "counts": counts, "cases": rows}


def host_lines(name, facts):
    device, host = facts["device"], facts["host"]
    kinds = {"rxe": "RoCE", "siw": "iWARP", "ib": "InfiniBand"}
    shown = {
        "device": f"{device['device']} ({kinds[device['kind']]}), driver {device['driver']} {device['driver_version']}".strip(),
        "model": " ".join(filter(None, [device["model"], device["board"], device["pci_id"]])) or "unknown",
        "firmware": device["firmware"] or "unknown", "link": f"{device['rate']}, MTU {device['mtu']}",
        "kernel": f"{host['kernel']} {host['machine']}, {host['cpus']} processors",
        "system": f"{host['distribution']}, {host['libc']}", "own library": host["own_librdmacm"],
        "limits": f"memlock {host['memlock']}, nofile {host['nofile']}, {'root' if host['root'] else 'not root'}",
    }
    return [f"{name}", *(f"  {key:<12} {value}" for key, value in shown.items()), ""]


def figure_lines(rows):
    lines = []
    for row in rows:
        for name, columns in row["figures"].items():
            lines.append(f"  {name:<34} " + "  ".join(f"{column} {value:g}" for column, value in columns.items()))
    return ["Figures (own: the machine's library; a pair of words: server/client)", *lines, ""] if lines else []


def case_lines(rows):
    lines, group = [], None
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines += ["", group]
        lines.append(f"  {WORDS[row['state']]:<8} {row['name']}" + (f": {row['facts']}" if row["facts"] else ""))
        if row["state"] != "same":
            lines += ["             " + line for line in row["detail"]]
    return lines


def text(report):
    counts, bad = report["counts"], [row for row in report["cases"] if row["state"] in BAD]
    lines = [f"rdmacm-verify {report['kit']}, {report['date']}",
             "", f"{counts['same']} ok, {counts['differs']} differ, {counts['fails']} fail, {counts['cannot']} could not be compared"]
    if not report["complete"]:
        lines.append("The run is not complete: start rdmacm-verify again to continue it.")
    lines.append("")
    for name, facts in report["hosts"].items():
        lines += host_lines(name, facts)
    lines += ["Differences", *(f"  {row['group']}: {row['name']}: {row['facts']}" for row in bad)] if bad else ["No differences."]
    lines += ["", *figure_lines(report["cases"]), "All cases", *case_lines(report["cases"])]
    return "\n".join(lines) + "\n"


def write(folder, report, redaction):
    hosts = report.pop("hosts")
    # Firmware and kernel versions can look like addresses; nothing in these facts is one.
    report = {**redaction(report), "hosts": hosts}
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "report.txt").write_text(text(report), encoding="utf-8")
    return report

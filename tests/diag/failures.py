"""Provokes failures in the lab and checks what RDMACM_LOG, rdmacm-doctor and the probes report about them."""

import json
import os
import pathlib
import re
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
from harness import TOP, UNAVAILABLE, dist_dir, ours_dir, run_lab

LAB_SECONDS = 900
OUT = TOP / "target/diag"
RESULTS = OUT / "results"
LOG = r"^([-0-9T:.]+Z )?librdmacm\[[0-9]+\]: [^ :]+:"
SOCKET = "socket [0-9]+"
PREFIXES = ("ib-", "deb-")
PROBES = "cm_connect cm_accept cm_event cm_close rs_connect rs_accept rs_send rs_recv rs_close"


def text(name):
    path = RESULTS / name
    return path.read_text(errors="replace") if path.exists() else ""


# ---- the checks that `expected` names -----------------------------------------------------------


def has(name, pattern, report):
    pattern = pattern.replace("LOG", LOG, 1) if pattern.startswith("LOG") else pattern
    pattern = pattern.replace("SOCKET", SOCKET)
    if any(re.search(pattern, line) for line in text(name).splitlines()):
        report.ok(name, pattern)
    else:
        report.fail(name, f"no line like: {pattern}", text(name).splitlines()[:12])


def content_is(name, content, report):
    if (RESULTS / name).exists() and text(name).rstrip("\n") == content:
        report.ok(f"{name} is '{content[:60]}'")
    else:
        report.fail(name, f"is not '{content}'", text(name).splitlines()[:12])


def log_lines(name, number, report):
    count = len(re.findall(LOG, text(name), re.M))
    report.note("ok" if count == int(number) else "FAIL", name, f"{count} lines, {number} expected")


def same(name, other, report):
    alike = (RESULTS / name).exists() and text(name) == text(other)
    report.note("ok" if alike else "FAIL", f"{name} is the same as {other}")


def is_about(name, argument, report):
    code, wanted = argument.split()
    checks = json.loads(text(name) or '{"checks": []}')["checks"]
    found = [f"{check['device']}/{check['port']}" if check["port"] else check["device"] for check in checks if check["code"] == code]
    report.note("ok" if wanted in found else "FAIL", name, f"{code} about {wanted}", [] if wanted in found else map(str, found))


KINDS = {"has": has, "is": content_is, "lines": log_lines, "same": same, "about": is_about}


def check_expected(lab, report):
    """Checks the lines of one lab: those whose names have its prefix, or none of PREFIXES."""
    for line in (HERE / "expected").read_text().splitlines():
        if line and not line.startswith("#"):
            kind, name, *argument = line.split(" ", 2)
            if next((prefix for prefix in PREFIXES if name.startswith(prefix)), "") == lab:
                KINDS[kind](name, "".join(argument), report)


# ---- other checks -------------------------------------------------------------------------------


def check_probes(report):
    command = ["readelf", "-n", ours_dir() / "librdmacm.so.1"]
    notes = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    for probe in PROBES.split():
        found = re.search(rf"^ *Name: {probe}$", notes.stdout, re.M)
        report.note("ok" if found else "FAIL", f"probe {probe} is in the library")


def documented(header):
    """The quoted words in the first column of the table in docs/doctor-codes.md with this header."""
    table = (TOP / "docs/doctor-codes.md").read_text().partition(f"| {header} |")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `([^`]+)`", table, re.M))


def check_format(report):
    """Each JSON report has the keys that the document lists, and only codes of its table."""
    of_report, of_finding, codes = map(documented, ("key of the report", "key of a finding", "code"))
    for path in sorted(RESULTS.glob("*-json.out")):
        printed = json.loads(path.read_text() or "{}")
        wrong = set(printed) ^ of_report
        for finding in printed.get("checks", []):
            wrong |= set(finding) ^ of_finding | ({finding.get("code")} - codes)
        report.note("FAIL" if wrong else "ok", path.name, "has the documented format", map(str, wrong))


def check_json(report):
    checks = json.loads(text("doctor-json.out") or '{"checks": []}')["checks"]
    number = sum(check["check"] == "connection" and check["state"] == "ok" for check in checks)
    report.note("ok" if number == 8 else "FAIL", "doctor-json", f"{number} of 8 connections")


def check_debian(doctor, report):
    """Cases that need what only Debian's own kernel has."""
    done = subprocess.run([TOP / "tests/lab/modules", "path"], check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        report.skip("debian", "modules of Debian's kernel cannot be had here: " + "".join(done.stderr.splitlines()[-1:]))
    elif in_lab("complete-debian", [HERE / "guest-debian", doctor, done.stdout.strip()], report, kernel="debian"):
        check_expected("deb-", report)


def check_host(fails, doctor, report):
    """Checks on this machine, if it has no RDMA devices."""
    devices = pathlib.Path("/sys/class/infiniband")
    if devices.is_dir() and any(devices.iterdir()):
        report.skip("host", "this machine has RDMA devices")
        return
    done = subprocess.run([fails, "channel"], check=False, env={**os.environ, "RDMACM_LOG": "1", "LD_LIBRARY_PATH": str(ours_dir())},
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    (RESULTS / "host.err").write_bytes(done.stderr)
    has("host.err", "rdma_create_event_channel: ENODEV: this machine has no RDMA device", report)
    done = subprocess.run([doctor, "--json"], check=False, stdout=subprocess.PIPE, text=True)
    (RESULTS / "doctor-host.status").write_text(f"{done.returncode}\n")
    content_is("doctor-host.status", "1", report)
    lines = [f"{check['state']} {check['check']} {check['text']}\n" for check in json.loads(done.stdout)["checks"]]
    (RESULTS / "doctor-host.lines").write_text("".join(lines))
    has("doctor-host.lines", "^problem [a-z]+ this machine has no RDMA device", report)
    has("doctor-host.lines", "^not-applicable connection not tried: this machine has no RDMA device", report)


def in_lab(complete, command, report, **options):
    """Runs the command in a lab. Returns whether it made the file `complete`, which it does last."""
    log = OUT / f"lab-{complete}.log"
    status = run_lab(command, log=log, lib="ours", time_limit=LAB_SECONDS, out=RESULTS, **options)
    last = log.read_text(errors="replace").splitlines()[-5:]
    if status == UNAVAILABLE:
        report.skip(f"lab-{complete}", "it cannot run here: " + "".join(last[-1:]))
    elif not (RESULTS / complete).exists():
        report.fail(f"lab-{complete}", f"it ended early (see {log})", last)
    return (RESULTS / complete).exists()


def run(test, options, report):
    doctor = pathlib.Path(os.environ.get("DOCTOR") or dist_dir() / "bin/rdmacm-doctor").resolve()
    shutil.rmtree(OUT, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    programs = test.values(options)["programs"]
    fails, hostile = programs / "tools/fails", programs / "peer/ours/raw"
    parts = [options.part] if options.part else ["soft", "ib", "debian"]
    if "soft" in parts and in_lab("complete", [HERE / "guest", fails, hostile, doctor], report):
        check_expected("", report)
        check_json(report)
        check_probes(report)
    if "ib" in parts and in_lab("complete-ib", [HERE / "guest-ib", fails, doctor], report, ib=True):
        check_expected("ib-", report)
    if "debian" in parts:
        check_debian(doctor, report)
    check_format(report)
    check_host(fails, doctor, report)

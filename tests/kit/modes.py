"""Builds the hardware kit, unpacks it in the lab and runs it there."""

import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
from harness import TOP, start_lab

DEVICES = {"rxe": "rxe0", "siw": "siw0", "ib": "vib0"}
# Without --device, where not on all.
KINDS = {"quick": ["rxe"], "guests": ["rxe", "siw"]}
# A lab's time limit; the kit itself ends after an hour.
SECONDS = {"quick": 600, "full": 4200, "hosts": 4200, "guests": 2400}


def packages():
    """The folder of the programs that the kit can run, or None."""
    done = subprocess.run([TOP / "tests/consumers/packages", "path"], stdout=subprocess.PIPE, check=False, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def make_keys(folder, root):
    """Keys for ssh between the guests, made by the packaged ssh-keygen."""
    env = {"LD_LIBRARY_PATH": f"{root}/usr/lib/x86_64-linux-gnu"}
    for name in ("host", "id_ed25519"):
        subprocess.run([f"{root}/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{name}"], check=True, env=env)


def run_guests(kind, tarball, report, results):
    """One guest runs the kit; the other one is its peer, and is ended then."""
    root = packages()
    modules = subprocess.run([TOP / "tests/lab/modules", "path"], stdout=subprocess.PIPE, check=False, text=True)
    if root is None or modules.returncode:
        report.skip(f"{kind}-guests", "Debian's packages or kernel cannot be had here")
        return
    with tempfile.TemporaryDirectory(prefix="rdmacm-kit-") as folder:
        keys, ends = pathlib.Path(folder) / "keys", [f"{folder}/{end}" for end in "ab"]
        keys.mkdir()
        make_keys(keys, root)
        words = [tarball, DEVICES[kind], root, keys, modules.stdout.strip()]
        options = {"kernel": "debian", "time_limit": SECONDS["guests"], "mem": "2G"}
        peer = start_lab([HERE / "guest", "peer", *words], cable=f"{ends[1]},{ends[0]}", **options)
        out = results / f"guests-{kind}" if results else None
        try:
            report.relay_lab(f"{kind}-guests", start_lab([HERE / "guest", "guests", *words], cable=",".join(ends), out=out, **options))
        finally:
            peer.terminate()
            log = peer.communicate()[0]
        if "sshd runs" not in log:
            report.fail(f"{kind}-guests", "the other guest did not start", log.splitlines()[-10:])


def run_mode(mode, kind, tarball, report, results):
    if mode == "guests":
        run_guests(kind, tarball, report, results)
        return
    words = [HERE / "guest", mode, tarball, DEVICES[kind]]
    if mode != "quick":
        root = packages()
        if root is None:
            report.skip(f"{kind}-{mode}", "Debian's packages cannot be had here")
            return
        words.append(root)
    out = results / f"{mode}-{kind}" if results else None
    report.relay_lab(f"{kind}-{mode}", start_lab(words, time_limit=SECONDS[mode], ib=kind == "ib", out=out,
                                                 peer=mode == "hosts" and kind != "ib"))


def run(_test, options, report):
    built = subprocess.run([TOP / "programs/kit/build"], stdout=subprocess.PIPE, check=False, text=True)
    if built.returncode:
        report.fail("kit", "cannot be built")
        return
    for kind in [options.device] if options.device else KINDS.get(options.mode, list(DEVICES)):
        run_mode(options.mode, kind, built.stdout.strip(), report, options.results)

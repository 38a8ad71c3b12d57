"""Describes a host: its RDMA device, software, and limits. Uses files of /sys and unprivileged programs only."""

import fcntl
import glob
import os
import platform
import resource
import socket
import struct
import subprocess
import sys

CLASS = "/sys/class/infiniband"
SIOCGIFADDR = 0x8915
IPOIB = "32"  # ARPHRD_INFINIBAND


def read(*path):
    try:
        with open(os.path.join(*path), errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def output_of(*command):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                              universal_newlines=True).stdout
    except OSError:
        return ""


# ---- devices -----------------------------------------------------------------------------------


def kind_of(device):
    """rxe, siw or ib: the kinds that the conformance programs distinguish. They stand for RoCE, iWARP and InfiniBand."""
    if "iWARP" in read(CLASS, device, "node_type") or "RNIC" in read(CLASS, device, "node_type"):
        return "siw"
    return "ib" if read(CLASS, device, "ports/1/link_layer") == "InfiniBand" else "rxe"


def netdev_of(device):
    """The network interface of a port: from its GIDs, the program rdma, or for IPoIB the interface with its GID."""
    for path in sorted(glob.glob(os.path.join(CLASS, device, "ports/1/gid_attrs/ndevs/*"))):
        if read(path):
            return read(path)
    for line in output_of("rdma", "link", "show").splitlines():
        words = line.split()
        if words[:1] == ["link"] and words[1].startswith(device + "/") and "netdev" in words:
            return words[words.index("netdev") + 1]
    gid = read(CLASS, device, "ports/1/gids/0").replace(":", "")
    for path in glob.glob("/sys/class/net/*"):
        if gid and read(path, "type") == IPOIB and read(path, "address").replace(":", "").endswith(gid[16:]):
            return os.path.basename(path)
    return ""


def ipv4_of(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
        except OSError:
            return ""


def ipv6_of(interface):
    """An address that is neither link-local nor tentative."""
    for line in read("/proc/net/if_inet6").splitlines():
        words = line.split()
        if words[5] == interface and words[3] != "20" and not int(words[4], 16) & 0x40:
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
    return ""


def driver_of(device):
    link = os.path.join(CLASS, device, "device/driver")
    if os.path.exists(link):
        return os.path.basename(os.path.realpath(link))
    # Software devices have no driver of a bus.
    return device.rstrip("0123456789_")


def device_facts(device):
    def port(name):
        return read(CLASS, device, "ports/1", name)

    return {
        "device": device, "kind": kind_of(device), "driver": driver_of(device), "firmware": read(CLASS, device, "fw_ver"),
        "model": read(CLASS, device, "hca_type"), "board": read(CLASS, device, "board_id"),
        "pci_id": (read(CLASS, device, "device/vendor") + ":" + read(CLASS, device, "device/device")).strip(":"),
        "driver_version": read(CLASS, device, "device/driver/module/version"),
        "node_type": read(CLASS, device, "node_type"), "link_layer": port("link_layer"), "rate": port("rate"),
        "state": port("state"),
    }


def active_devices():
    names = sorted(os.listdir(CLASS)) if os.path.isdir(CLASS) else []
    return [name for name in names if "ACTIVE" in read(CLASS, name, "ports/1/state")]


def choose(device, address):
    """Returns (device, interface, IPv4 address) or a reason why there is none."""
    if not os.path.isdir(CLASS) or not os.listdir(CLASS):
        return "this host has no RDMA device"
    for name in [device] if device else active_devices():
        interface = netdev_of(name)
        found = address or (interface and ipv4_of(interface))
        if found:
            return name, interface, found
    if device:
        return "%s has no network interface with an IPv4 address; --address gives one" % device
    return "no device has an active port with an IPv4 address; --device and --address choose one"


# ---- the host ----------------------------------------------------------------------------------


def own_library():
    """The file name of the librdmacm that the loader finds without LD_LIBRARY_PATH."""
    script = ("import ctypes, os; ctypes.CDLL('librdmacm.so.1'); "
              "print([os.path.realpath(l.split()[-1]) for l in open('/proc/self/maps') if '/librdmacm.so' in l][0])")
    env = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env,
                          check=False, universal_newlines=True)
    return os.path.basename(done.stdout.strip())


def distribution():
    for line in read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip('"')
    return ""


def limit_text(which):
    value = resource.getrlimit(which)[0]
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def names_to_hide():
    """What may not be in a report: names and addresses of this host."""
    hidden = {platform.node(), socket.gethostname()}
    for path in glob.glob("/sys/class/net/*/address") + glob.glob(CLASS + "/*/*_guid") + glob.glob(CLASS + "/*/ports/*/gids/*"):
        value = read(path)
        if value.strip("0:"):
            hidden.add(value)
    hidden.update(word for word in [read(CLASS, name, "node_desc") for name in active_devices()] if word)
    for path in glob.glob("/sys/class/net/*"):
        hidden.update(filter(None, [ipv4_of(os.path.basename(path)), ipv6_of(os.path.basename(path))]))
    return sorted(word for word in hidden if len(word) > 2)


def describe(device=None, address=None):
    chosen = choose(device, address)
    if isinstance(chosen, str):
        return {"error": chosen}
    name, interface, found = chosen
    facts = device_facts(name)
    facts["mtu"] = read("/sys/class/net", interface, "mtu") if interface else ""
    return {
        "device": facts, "address": found, "address6": ipv6_of(interface) if interface else "",
        "gid": read(CLASS, name, "ports/1/gids/0"), "hide": names_to_hide(),
        "host": {
            "kernel": platform.release(), "machine": platform.machine(), "distribution": distribution(),
            "libc": " ".join(platform.libc_ver()), "python": platform.python_version(), "cpus": os.cpu_count(),
            "own_librdmacm": own_library(), "root": os.geteuid() == 0, "memlock": limit_text(resource.RLIMIT_MEMLOCK),
            "nofile": limit_text(resource.RLIMIT_NOFILE),
        },
    }

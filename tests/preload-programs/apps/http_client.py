"""Fetches every file of a folder from a server, sequentially and four at a time, and compares; prints the bytes."""
import concurrent.futures
import pathlib
import sys
import urllib.error
import urllib.request

BASE, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])


def fetch(name):
    with urllib.request.urlopen(f"{BASE}/{name}", timeout=60) as answer:
        data = answer.read()
    if data != (FOLDER / name).read_bytes():
        sys.exit(f"{name}: {len(data)} bytes differ")
    return len(data)


def main():
    names = sorted(p.name for p in FOLDER.iterdir())
    moved = sum(fetch(name) for name in names)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        moved += sum(pool.map(fetch, names * 2))
    try:
        fetch("none")
        sys.exit("a missing file was answered")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            sys.exit(f"a missing file: {error}")
    print(moved)


main()

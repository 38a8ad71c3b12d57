# shellcheck shell=bash
# Everyday work without sockets, as functions; each prints what it observed. Run twice by ordinary-guest, in a new folder,
# with and without the preload for the shell and all that it starts. TOP is the checkout.

check_pipeline() {
    seq 1 50000 | sort -r | awk '{ s += $1; print }' | tail -n 3 | tac
    seq 1 20000 | xargs -n 500 echo | wc
    yes abc | head -c 1000000 | tr a-c d-f | sha256sum
}

check_redirections() {
    exec 5>one 6>&5 7<>two
    echo first >&5
    echo second >&6
    echo third >&7
    exec 5>&- 6>&- 7>&-
    true >&5 || echo "5 is closed"
    cat one two
    read -r line < <(echo from a substitution) && echo "$line"
    cat <<<"a here string"
    cat <<HERE
a here document
HERE
}

check_limits() {
    local i
    ulimit -n 32
    for i in {10..40}; do
        eval "exec $i</dev/null" 2>/dev/null || { echo "no descriptor from number $i" && break; }
    done
}

check_background() {
    local i
    for i in 1 2 3 4 5; do { echo "job $i" | cat >"job$i"; } & done
    wait
    cat job?
    timeout 5 cat /dev/null
    echo "timeout $?"
    mkfifo fifo
    head -c 100000 /dev/zero >fifo &
    wc -c <fifo
    wait
}

check_tar() {
    tar -C "$TOP/src" --sort=name --mtime=@0 --owner=0 --group=0 --mode=644 -cf - . | tee tar | sha256sum
    mkdir out && tar -C out -xf tar && diff -r "$TOP/src" out && echo "the same"
    gzip -nc tar | sha256sum
    gzip -c tar | gunzip | cmp - tar && echo "the same"
    dd if=tar of=copy bs=1000 status=none && cmp tar copy && echo "the same"
}

check_git() {
    command -v git >/dev/null || { echo "no git" && return; }
    export GIT_AUTHOR_DATE='@0 +0000' GIT_COMMITTER_DATE='@0 +0000' GIT_CONFIG_NOSYSTEM=1
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git init -q -b main repo && cd repo && cp -r "$TOP/src/rsocket" . && git add . && git commit -qm one && git log --format='%H %s'
    git gc -q && git fsck --strict && cd .. && git clone -q repo clone && cd clone && git rev-parse HEAD && git grep -c 'unsafe' | sort | head
}

check_python() {
    python3 - <<'PYTHON'
import mmap, os, select, subprocess, tempfile
r, w = os.pipe()
os.write(w, b"abc")
print(select.select([r], [], [], 0), os.read(r, 10) == b"abc")
poller = select.epoll()
poller.register(r, select.EPOLLIN | select.EPOLLET)
os.write(w, b"x")
print([e for _, e in poller.poll(1)], poller.poll(0))
os.dup2(r, 90); os.close(r); print(os.read(90, 5))
print(subprocess.run(["tr", "a-z", "A-Z"], input=b"through a pipe", capture_output=True).stdout)
with tempfile.TemporaryFile() as f:
    print(os.writev(f.fileno(), [b"one", b"two"]), f.seek(0), os.readv(f.fileno(), [bytearray(4)]))
    with tempfile.TemporaryFile() as to:
        print(os.sendfile(to.fileno(), f.fileno(), 1, 4), to.seek(0), to.read())
try:
    os.close(90); os.close(90)
except OSError as error:
    print(error)
PYTHON
}

# shellcheck shell=bash
# What scripts in the lab share (tests/programs, tests/faults): processes with a time limit, and
# waiting for events. Programs start slowly in the lab, so this uses what bash has built in.

# Names of the processes by pid; NAME.out and NAME.status in the working folder are theirs.
names=()
# A pipe that nobody writes: reading it with a limit is bash's own sleep.
mkfifo "/run/silence.$$"
exec {silence}<>"/run/silence.$$"

# start NAME COMMAND...: in the background, its output in NAME.out, its pid in `pid`.
start() {
    local name=$1
    shift
    "$@" >"$name.out" 2>&1 &
    pid=$!
    # shellcheck disable=SC2034 # for the caller
    names[pid]=$name
}

# listening COMM: an id of the program with this name is listening.
listening() {
    local line
    while read -r line; do
        [[ $line = *" state LISTEN "*" comm $1 "* ]] && return
    done < <(rdma res show cm_id)
    return 1
}

# wait_for LIMIT WORD PID...: waits for the processes and notes their statuses; after LIMIT seconds
# those that still run are killed and WORD is noted for them. (Not wait -n: it forgets processes
# that ended while it waited for others.)
wait_for() {
    local limit=$1 word=$2 guard p status
    shift 2
    guard "$limit" "$@" &
    guard=$!
    for p in "$@"; do
        wait "$p" 2>/dev/null
        status=$?
        [ ! -e "killed-$p" ] || status=$word
        echo "$status" >"${names[p]}.status"
    done
    # SIGTERM can be lost in bash when it comes just before the read.
    kill -9 "$guard" 2>/dev/null
    wait "$guard" 2>/dev/null
}

# Kills the processes after the limit.
guard() {
    local limit=$1 p
    shift
    read -rt "$limit" -u "$silence"
    for p in "$@"; do
        kill -0 "$p" 2>/dev/null || continue
        : >"killed-$p"
        kill -9 "$p"
    done
}

# hit_by_siw OUTPUT...: soft-iWARP refused a connection for one of its two faults, which say nothing
# about the libraries (docs/quirks.md): the port that the kernel drew is that of an older connection, or
# the server's first bytes arrived with the answer (EINVAL; CONNECT_ERROR -22 as an event).
hit_by_siw() {
    [ "$device" = siw ] &&
        grep -qsE 'Cannot assign requested address|Address already in use|connect.*Invalid argument|CONNECT_ERROR.*-22' "$@"
}

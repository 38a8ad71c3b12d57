# shellcheck shell=bash
# Shared by scripts in the lab (tests/programs, tests/faults): processes with a time limit, and waiting
# for events. Programs start slowly in the lab, so bash builtins are preferred.

# Names of the processes by pid; their files are NAME.out and NAME.status in the working folder.
names=()
# A pipe that nobody writes: reading it with a limit is bash's own sleep.
mkfifo "${FAULTS_FOLDER:-/run}/silence.$$"
exec {silence}<>"${FAULTS_FOLDER:-/run}/silence.$$"

# start NAME COMMAND...: in the background, its output in NAME.out, its pid in `pid`. With log_failures=yes ours logs
# failures in NAME.log.
start() {
    local name=$1
    shift
    RDMACM_LOG=${log_failures:+$PWD/$name.log} "$@" >"$name.out" 2>&1 &
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

# wait_for LIMIT WORD PID...: waits for the processes and writes their statuses. After LIMIT seconds
# remaining processes are killed, and WORD is written for them. (Not wait -n: it forgets processes that
# exit while it waits for others.)
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
    # bash can lose a SIGTERM that arrives just before the read.
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

# early_data CLIENTLIB CLIENT...: with log_failures: soft-iWARP in the client's kernel has refused the answer to its request, because the
# server's first bytes had arrived with it (docs/compatibility.md). The kernel reports that by an event, which a client with ours
# logs: an EINVAL of the library's own is another fault.
early_data() {
    local library=$1 client
    shift
    [ "$device" = siw ] || return
    for client in "$@"; do
        case $library in
        ours) ! grep -qs 'event: .* RDMA_CM_EVENT_CONNECT_ERROR EINVAL' "$client.log" || return 0 ;;
        *) ! grep -qsE 'connect.*Invalid argument|CONNECT_ERROR.*-22' "$client.out" || return 0 ;;
        esac
    done
    return 1
}

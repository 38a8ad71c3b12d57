# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with guest and the cases
# Functions for the cases of tests/preload-programs in the lab. A case is a function that runs in a subshell, in its own
# folder. ADDR, DEVICE, SERVER_LIB and CLIENT_LIB (ours|reference|plain), TOOLS and SERVICES, the folders of the programs,
# CLASSES, that of Java's, and mode (rdma|auto) are set by `guest`.

tools_bin=$TOOLS/usr/bin:$TOOLS/bin:$TOOLS/usr/sbin:$SERVICES/usr/bin:$SERVICES/usr/sbin
tools_lib=$TOOLS/usr/lib/x86_64-linux-gnu:$TOOLS/lib/x86_64-linux-gnu:$SERVICES/usr/lib/x86_64-linux-gnu:$SERVICES/lib/x86_64-linux-gnu
declare -A library=([ours]=$LAB_OURS [reference]=$LAB_REFERENCE)
# Environment of both ends that a case adds (RDMAV_FORK_SAFE=1).
extra_env=()
# yes: the case needs librspreload-full.so.
full=no

# End the case. Exit statuses: 0 passed, 1 failed, 77 skipped.
fail() { echo "$*" >reason && exit 1; }
cannot() { echo "$*" >reason && exit 77; }

# must TEXT COMMAND...: the case fails with TEXT unless the command succeeds.
must() {
    local text=$1
    shift
    "$@" >>must.log 2>&1 || fail "$text"
}

# Adds to the number of bytes that the processes have exchanged.
payload() { echo "$1" >>payload; }
fact() { echo "$*" >>facts; }

# under LIB COMMAND...: becomes the command, with that library loaded before all others.
under() {
    local dir=${library[$1]:-} file=librspreload.so
    [ "$full" = no ] || file=librspreload-full.so
    if [ "$1" = plain ]; then
        shift
        exec env "PATH=$tools_bin:$PATH" "LD_LIBRARY_PATH=$tools_lib" "$@"
    fi
    shift
    # Automatic mode needs no variables for processes that fork. The lab's hosts take their time to answer.
    if [ "$mode" = auto ]; then
        extra_env=(-u RDMAV_FORK_SAFE RS_MODE=auto RS_TIMEOUT=10000)
    else
        extra_env+=(RS_MODE=rdma)
    fi
    # For early_data in `guest`.
    [ "$DEVICE" != siw ] || extra_env+=("RDMACM_LOG=$PWD/rdmacm.$BASHPID.log")
    exec env "${extra_env[@]}" "PATH=$tools_bin:$PATH" "LD_LIBRARY_PATH=$dir:$tools_lib" \
        "LD_PRELOAD=$dir/rsocket/$file" "$@"
}

# plain COMMAND...: one of the programs without the preload.
plain() { env "PATH=$tools_bin:$PATH" "LD_LIBRARY_PATH=$tools_lib" "$@"; }

# Return whether a CM id, or a TCP socket, listens on the port.
rdma_listens() {
    local line
    while read -r line; do
        [[ $line = *" state LISTEN "*":$1 "* ]] && return
    done < <(rdma res show cm_id 2>/dev/null)
    return 1
}
tcp_listens() {
    local line hex
    printf -v hex ':%04X ' "$1"
    while read -r line; do
        [[ $line = *"$hex"*":0000 0A "* ]] && return
    done < <(cat /proc/net/tcp /proc/net/tcp6)
    return 1
}

# Waits until PID listens on PORT, and notes by which means. TCP is asked first: soft-iWARP's own listener, which is a TCP
# socket of the kernel, comes after the id has the state LISTEN. Until then connections are refused.
await_listener() {
    local port=$1 pid=$2 limit=$((SECONDS + hang_limit)) tcp
    while :; do
        if tcp_listens "$port"; then tcp=yes; else tcp=no; fi
        if [ "$mode$DEVICE$SERVER_LIB" = autorxeours ] && [ ! -e stays-tcp ] && ! rdma_listens "$port"; then
            :
        elif rdma_listens "$port"; then
            if [ "$tcp" = yes ] || [ "$DEVICE" != siw ]; then echo "rdma $port" >>listeners && return; fi
        elif [ "$tcp" = yes ]; then
            echo "tcp $port" >>listeners && return
        fi
        kill -0 "$pid" 2>/dev/null || return 1
        [ "$SECONDS" -lt "$limit" ] || return 1
        read -rt 0.05 -u "$silence"
    done
}

# The server of the previous case may exit, and release the port, with a delay.
await_free() {
    local port=$1 limit=$((SECONDS + hang_limit))
    while tcp_listens "$port" || rdma_listens "$port"; do
        [ "$SECONDS" -lt "$limit" ] || fail "port $port is still in use"
        read -rt 0.05 -u "$silence"
    done
}

# serve NAME PORT COMMAND...: starts a server; standard input from NAME.in when there is one. Its id in `server`.
serve() {
    local name=$1 port=$2 input=/dev/null
    shift 2
    await_free "$port"
    [ ! -e "$name.in" ] || input=$name.in
    printf '%s\n' "${extra_env[@]}" >environment
    (under "$SERVER_LIB" "$@") <"$input" >"$name.out" 2>"$name.err" &
    server=$!
    await_listener "$port" "$server" || fail "$name does not listen: $(last_words "$name")"
}

# client NAME COMMAND...: runs a client to its end, fails when it fails or hangs.
client() {
    local name=$1 status=0
    start_client "$@"
    finish "$started" || status=$?
    [ "$status" = 0 ] || fail "$name: $(ended "$status"): $(last_words "$name")"
}

# start_client NAME COMMAND...: the same in the background; its id in `started`.
start_client() {
    local name=$1 input=/dev/null
    shift
    [ ! -e "$name.in" ] || input=$name.in
    (under "$CLIENT_LIB" "$@") <"$input" >"$name.out" 2>"$name.err" &
    started=$!
}

# On soft-iWARP with fork support only a QP shows that RDMA is used.
watch_qps() {
    if [ "$DEVICE" = siw ] && [ ${#extra_env[@]} -gt 0 ] && [ ! -e qp-seen ]; then
        [[ $(rdma res show qp 2>/dev/null) != *siw0* ]] || : >qp-seen
    fi
}

# finish PID: returns its status; 124 if it did not exit by itself.
finish() {
    local pid=$1 limit=$((SECONDS + hang_limit)) status=0
    while kill -0 "$pid" 2>/dev/null; do
        watch_qps
        if [ "$SECONDS" -ge "$limit" ]; then
            stacks "$pid"
            kill -9 "$pid"
            wait "$pid" 2>/dev/null
            return 124
        fi
        read -rt 0.05 -u "$silence"
    done
    wait "$pid" 2>/dev/null || status=$?
    return "$status"
}

# finish_server NAME: the server must exit by itself with status 0.
finish_server() {
    local status=0
    finish "$server" || status=$?
    [ "$status" = 0 ] || fail "$1: $(ended "$status"): $(last_words "$1")"
}

# Sends SIGTERM to a persistent server, which must exit. Once more after a while: epoll_wait may go on after a signal that
# came beside a wake-up for nothing (docs/preload.md, Limits).
stop_server() {
    local status=0 again
    kill -TERM "$server" 2>/dev/null || fail "the server ended early: $(last_words server)"
    (sleep 5 && kill -TERM "$server") 2>/dev/null &
    again=$!
    finish "$server" || status=$?
    kill "$again" 2>/dev/null
    [ "$status" != 124 ] || fail "the server does not exit after SIGTERM"
}

ended() {
    case $1 in
    124) echo "no end after $hang_limit s" ;;
    12[89] | 1[3-6][0-9]) echo "killed by signal $(($1 - 128))" ;;
    *) echo "status $1" ;;
    esac
}

last_words() {
    local line
    line=$(cat "$1.err" "$1.out" 2>/dev/null | tr -d '\0' | tr '\r' '\n' | tr -s ' ' | grep -aE '[a-z]{3}' | tail -n 1 | cut -c1-150)
    echo "${line:-no message}"
}

# Writes the stacks of a hanging process and its server to the results.
stacks() {
    local pid
    if [ "$want_stacks" != yes ] || ! command -v gdb >/dev/null; then return 0; fi
    for pid in "$1" ${server:+"$server"}; do
        { echo "== $pid $(tr '\0' ' ' <"/proc/$pid/cmdline")"; timeout 20 gdb -p "$pid" -batch -ex 'thread apply all bt 12'; } >>stacks 2>&1 </dev/null
    done
}

# until_true TEXT COMMAND...: waits until the command succeeds.
until_true() {
    local text=$1 limit=$((SECONDS + hang_limit))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$limit" ] || fail "$text"
        read -rt 0.1 -u "$silence"
    done
}

# random FILE BYTES
random() { head -c "$2" /dev/urandom >"$1"; }
# same FILE FILE: of equal contents, or the case fails.
same() { cmp "$1" "$2" >>must.log 2>&1 || fail "$1 and $2 differ: $(tail -n 1 must.log)"; }

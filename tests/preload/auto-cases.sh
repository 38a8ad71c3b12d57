# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # shared with auto-guest
# Cases of automatic mode, for auto-guest: hosts that do not answer, ports, rules, processes, hostile clients. A case is a
# function; it returns a status, and `facts`.

# start KIND COMMAND...: a server of another program, on $port; waits until it listens. Its input is the pipe `orders`.
start() {
    local kind=$1
    shift
    rm -f "$work"/server* "$work"/client* "$work/orders"
    mkfifo "$work/orders"
    exec {orders}<>"$work/orders"
    with "$kind" "$work/server.log" timeout 120 "$@" <"$work/orders" >"$work/server.out" 2>"$work/server.err" &
    server=$!
    # A daemon's first process has ended by then.
    for ((left = 1000; left > 0; left--)); do
        ! grep -q listening "$work/server.out" || return 0
        nap 0.05
    done
    return 1
}

# processes WAY CONNECTIONS [ADDRESS]: a server of auto_processes.py.
processes() {
    port=$((port + 1))
    start auto "$python" "$here/auto_processes.py" "$1" "${3:-$ADDR}" "$port" "$2"
}

# client WAY [COUNT]: a client of auto_processes.py.
client() {
    with auto "$work/client.log" timeout 60 "$python" "$here/auto_processes.py" "$1" "$ADDR" "$port" "${@:2}" \
        >"$work/client.out" 2>"$work/client.err"
}

# several COUNT KIND ADDRESS: clients one after another.
several() {
    local i
    for ((i = 0; i < $1; i++)); do
        run_client "$2" "$3" block
        [ "$status" = 0 ] || return 1
    done
}

# Waits until the server's output has so many lines that match.
until_lines() {
    local left
    for ((left = 600; left > 0; left--)); do
        [ "$(grep -c "$2" "$work/server.out")" -lt "$1" ] || return 0
        nap 0.05
    done
    return 1
}

moved() { echo $(($(packets) - before)); }

# A host without an RDMA device, at another end of a link: the time is spent once, then it is remembered.
case_silent_host() {
    local first rest
    [ "$device" = rxe ] || { facts='the address of an InfiniBand adapter goes with the adapter' && return 77; }
    rdma link delete "$RXE_PEER_DEV"
    start_server plain "$PEER_ADDR" 3 block || return 1
    status=0
    timeout=250 with auto "$work/client.log" timeout 60 "$programs/auto" client "$PEER_ADDR" "$port" block 3 \
        >"$work/client.out" 2>"$work/client.err" || return 1
    facts=$(sed -n 's/^connected //p' "$work/client.out" | paste -sd' ')
    read -r first rest <<<"$facts"
    facts="connected after $facts ms"
    [ "$first" -ge 240 ] && [ "$(grep -c 'TCP: no answer by RDMA in time' "$work/client.log")" = 1 ] &&
        [ "$(grep -c 'did not answer by RDMA a short time ago' "$work/client.log")" = 2 ]
}

# Threads that are cancelled while they wait for an answer by RDMA.
case_silent_host_cancelled() {
    [ "$device" = rxe ] || { facts='the address of an InfiniBand adapter goes with the adapter' && return 77; }
    rdma link delete "$RXE_PEER_DEV" 2>/dev/null
    rm -f "$work"/server* "$work"/client*
    with auto "$work/client.log" timeout 60 "$programs/auto" cancel "$PEER_ADDR" 7001 >"$work/client.out" 2>"$work/client.err"
    status=$?
    facts=$(paste -sd' ' "$work/client.out")
    return "$status"
}

# Attempts that end in the middle: no server sees both.
case_no_connection_twice() {
    local count=20
    start_server auto "$ADDR" "$count" poll || return 1
    lab-ours env RS_MODE=auto RS_TIMEOUT=2 RS_REMEMBER=0 RDMACM_LOG="$work/client.log" LD_PRELOAD="$ours" timeout 100 \
        "$programs/auto" client "$ADDR" "$port" block "$count" >"$work/client.out" 2>"$work/client.err" || return 1
    wait "$server" || return 1
    facts="$(grep -c ': RDMA: connected' "$work/client.log") by RDMA, $(grep -c ': TCP: ' "$work/client.log") by TCP"
    [ "$(grep -c '^echoed 100000' "$work/server.out")" = "$count" ] && ! grep -qv '^echoed 100000\|^listening' "$work/server.out"
}

case_any_port() {
    rm -f "$work"/server* "$work"/client*
    with auto "$work/server.log" timeout 60 "$programs/auto" server "$ADDR" 0 1 block >"$work/server.out" 2>"$work/server.err" &
    server=$!
    until_lines 1 listening || return 1
    port=$(sed -n 's/listening //p' "$work/server.out")
    run_client auto "$ADDR" block
    port=8000 facts=$(happened)
    wait "$server" && [ "$facts" = RDMA ]
}

# An rsocket has the port: TCP serves.
case_port_taken() {
    local other
    start_server rdma "$ADDR" 1 block || return 1
    other=$server
    port=$((port - 1))
    start_server auto "$ADDR" 1 block || return 1
    run_client plain "$ADDR" block
    kill "$other"
    facts=$(grep -o 'TCP: .*' "$work/server.log")
    [ "$status" = 0 ] && grep -q 'listen: .* TCP: another rsocket has the port' "$work/server.log"
}

case_rules() {
    mkdir -p /etc/rdma/rsocket
    printf 'timeout 9000\nmod auto\n\ntcp auto %s/24 # the lab\nrdma auto 10.0.0.0/8\n' "${ADDR%.*}.0" >/etc/rdma/rsocket/auto_config
    start_server auto "$ADDR" 1 block && run_client auto "$ADDR" block
    stop_server
    rm -f /etc/rdma/rsocket/auto_config
    facts=$(grep -o 'line [0-9]* is ignored' "$work/client.log" | paste -sd,)
    [ "$facts" = "line 2 is ignored,line 5 is ignored" ] && [ "$status" = 0 ] &&
        grep -q 'listen: .* TCP: a rule of the configuration' "$work/server.log" &&
        grep -q 'connect: .* TCP: a rule of the configuration' "$work/client.log"
}

# Which way a mode of the whole program goes.
case_mode_by_rule() {
    mkdir -p /etc/rdma/rsocket
    start_server plain "$ADDR" 1 block || return 1
    echo 'tcp auto *' >/etc/rdma/rsocket/auto_config
    status=0
    lab-ours env LD_PRELOAD="$ours" timeout 60 "$programs/auto" client "$ADDR" "$port" block >"$work/client.out" 2>&1 || status=$?
    rm -f /etc/rdma/rsocket/auto_config
    facts="client's status $status"
    [ "$status" = 0 ]
}

# Without any variable the mode is automatic, but for RDMAV_FORK_SAFE.
case_default_mode() {
    local plain forking
    plain=$(lab-ours env "RDMACM_LOG=$work/client.log" "LD_PRELOAD=$ours" "$programs/auto" client 127.0.0.1 1 block 2>&1)
    forking=$(lab-ours env RDMAV_FORK_SAFE=1 "RDMACM_LOG=$work/client.fork" "LD_PRELOAD=$ours" "$programs/auto" client 127.0.0.1 1 block 2>&1)
    facts="$plain; with RDMAV_FORK_SAFE $forking"
    grep -q 'TCP: a loopback address' "$work/client.log" && ! grep -qs 'TCP: a loopback address' "$work/client.fork"
}

# by_processes WAY CONNECTIONS RDMA: clients of a server of auto_processes.py, of which the first RDMA ones come by RDMA.
by_processes() {
    local count=$2
    processes "$1" "$count" || return 1
    several "$3" auto "$ADDR" || return 1
    facts="$(moved) packets for $3 connections by RDMA"
    [ "$(moved)" -ge $((40 * $3)) ] || return 1
    several "$((count - 1 - $3))" auto "$ADDR" && several 1 plain "$ADDR" && until_lines "$count" '^echoed 100000$' || return 1
    echo >&"$orders"
    wait "$server"
}
case_fork_after_accept() { by_processes fork 5 4; }
# Programs would see this host's own address, and another process's connections would be copied: after the first one the
# listener is TCP's.
case_executed_programs() {
    by_processes inetd 5 1 && grep -q 'listen: .* TCP: a program was executed with one of its connections' "$work/server.log"
}
case_prefork() {
    by_processes prefork 7 1 &&
        grep -q 'listen: .* TCP: another process of the program accepts its connections' "$work/server.log"
}

# The process that listens ends; its child goes on, by TCP.
case_daemon() {
    processes daemon 5 || return 1
    several 4 auto "$ADDR" && several 1 plain "$ADDR" && until_lines 5 '^echoed 100000$' || return 1
    facts="5 served"
}

case_child_of_a_client() {
    start_server auto "$ADDR" 1 block || return 1
    client child-reads || return 1
    wait "$server" || return 1
    facts="$(moved) packets, $(said "$work/client.log")"
    [ "$(moved)" -ge 80 ] && grep -q '^echoed 200000$' "$work/server.out"
}

# What a child has sent arrives although the parent, by which it goes, ends at once. Each time: nothing is remembered.
case_parent_of_a_writer_ends() {
    local i
    processes sink 5 || return 1
    for ((i = 0; i < 5; i++)); do
        RS_REMEMBER=0 client child-writes || return 1
    done
    wait "$server" || return 1
    facts="$(grep -c '^received 8000000$' "$work/server.out") of 5 received all"
    [ "$(grep -c '^received 8000000$' "$work/server.out")" = 5 ] && [ "$(moved)" -ge 9000 ]
}

# The library's descriptors, those of devices among them, are not where a program may want to have its own.
case_small_numbers() {
    processes sink 1 || return 1
    client numbers || return 1
    wait "$server" || return 1
    facts="$(said "$work/client.log"), $(<"$work/client.out")"
    [ "$(said "$work/client.log")" = RDMA ] && grep -q '^refused \[\]$' "$work/client.out" &&
        grep -q '^received 200000$' "$work/server.out"
}

# A program that trusts clients of its own host must not trust those that come by RDMA.
case_executed_program_sees_no_loopback_peer() {
    local address
    for address in 0.0.0.0 ::; do
        # Nothing of soft-iWARP's, which wildcard listeners would have to leave out.
        rdma link delete "$SIW_DEV" 2>/dev/null
        processes asks 1 "$address" || return 1
        client says || return 1
        wait "$server" || return 1
        facts="$facts$(sed -n 's/^peer //p' "$work/server.out"), $(said "$work/client.log"); "
        grep -q '^peer' "$work/server.out" && ! grep -q '^peer .*127[.]\|^peer ::1' "$work/server.out" &&
            [ "$(said "$work/client.log")" = RDMA ] || return 1
    done
}

# A socket that connects is a member of several epoll instances: it becomes an rsocket in all, or stays TCP.
case_several_epoll_instances() {
    local count
    processes fork 2 || return 1
    for count in 5 20; do
        client instances "$count" || return 1
        facts="$facts$(<"$work/client.out"), $(said "$work/client.log"); "
    done
    [ "$facts" = "got 1 by 4 instances, RDMA; got 1 by 19 instances, RDMA+TCP; " ] &&
        grep -q 'TCP: the socket is a member of too many epoll instances' "$work/client.log"
}

# spawned KIND WAY: a client and a server of KIND that execute programs without the library, by a WAY of auto_processes.py,
# each with the other end in auto.
spawned() {
    processes fork 1 || return 1
    before=$(packets)
    with "$1" "$work/client.log" timeout 60 "$python" "$here/auto_processes.py" "spawns-$2" "$ADDR" "$port" \
        >"$work/client.out" 2>"$work/client.err" || return 1
    wait "$server" && [ "$(moved)" -ge 30 ] && grep -q '^echoed 70000$' "$work/server.out" || return 1
    [ "${2#later}" = "$2" ] || return 0
    port=$((port + 1))
    start "$1" "$python" "$here/auto_processes.py" "spawns-$2" "$ADDR" "$port" 1 || return 1
    before=$(packets)
    several 1 auto "$ADDR" && wait "$server" && [ "$(moved)" -ge 40 ] && grep -q '^served$' "$work/server.out"
}

# Programs that are executed with a connection that was made by connect(2), and with an accepted one.
case_spawned_programs() {
    local way failed=0
    for way in subprocess subprocess-closing pass_fds posix_spawn posix_spawn-inherited pidfd_spawn _Fork \
        system popen later later-pidfd_spawnp; do
        if spawned "${1:-full}" "$way"; then
            facts+="${facts:+, }$way"
        else
            facts+="${facts:+, }$way FAILS: $(tail -qn 1 "$work"/client.err "$work"/server.err | paste -sd';')"
            failed=1
        fi
        stop_server
    done
    return "$failed"
}

# A program that is executed with one descriptor left cannot have the connection, and the log says why; the next one can.
case_programs_without_descriptors() {
    processes fork 1 || return 1
    with full "$work/client.log" timeout 60 "$python" "$here/auto_processes.py" spawns-few "$ADDR" "$port" \
        >"$work/client.out" 2>"$work/client.err" || return 1
    facts="$(sed -n 's/.*socket [0-9]*: not connected/not connected/p' "$work/client.log")"
    wait "$server" && grep -q '^echoed 70000$' "$work/server.out" || return 1
    [ "$facts" = 'not connected in the program that is executed with it: no connection inside the host: errno 24' ]
}

# With librspreload.so: children of fork(2) execute programs with both kinds of connections, those of vfork(2) with accepted
# ones; for the others the log has a line.
case_programs_of_children() {
    spawned auto fork || return 1
    facts=fork
    stop_server
    port=$((port + 1))
    start auto "$python" "$here/auto_processes.py" spawns-subprocess "$ADDR" "$port" 1 || return 1
    several 1 auto "$ADDR" && wait "$server" && grep -q '^served$' "$work/server.out" || return 1
    facts+=', vfork after accept'
    ! spawned auto subprocess && grep -q 'not connected in the program that is executed' "$work/client.log" || return 1
    facts+=', vfork after connect is reported'
}

# Numbers that are passed to a program without the library, by SCM_RIGHTS: connections go on, listeners are TCP's.
case_passed_to_another_program() {
    processes passes 3 || return 1
    client passes || return 1
    facts="server and client: $(said "$work/client.log"), $(moved) packets"
    [ "$(moved)" -ge 200 ] || return 1
    client passes && client passes && wait "$server" || return 1
    processes passes-listener 2 || return 1
    several 2 auto "$ADDR" || return 1
    facts="$facts; listener: $(said "$work/client.log")"
    grep -q 'listen: .* TCP: the program has passed it to another process' "$work/server.log"
}

# stdio on 0, 1 and 2.
case_standard_streams() {
    processes stdio 1 || return 1
    client says || return 1
    facts="$(<"$work/client.out"), $(said "$work/client.log")"
    [ "$facts" = "got 1, RDMA" ]
}

# Another process accepts, without the library: the first client by RDMA is reset, the next ones are served by TCP.
case_listener_of_another_program() {
    processes hands-on 3 || return 1
    client says || return 1
    facts="first $(<"$work/client.out")"
    client says || return 1
    facts="$facts, then $(<"$work/client.out") by $(said "$work/client.log")"
    [ "$facts" = "first got 0, then got 1 by RDMA+TCP" ] || [ "$facts" = "first got reset, then got 1 by RDMA+TCP" ] &&
        grep -q 'listen: .* TCP: another process accepts its connections' "$work/server.log"
}

# Datagrams are the kernel's, at both ends: programs find their DNS servers.
case_datagrams() {
    processes datagrams 1 || return 1
    client datagram || return 1
    port=$((port + 1))
    start plain "$python" "$here/auto_processes.py" datagrams "$ADDR" "$port" 1 || return 1
    client datagram || return 1
    facts=$(<"$work/client.out")
    [ "$facts" = "got question" ]
}

# A child is not killed because the parent, by which its connection goes, has ended.
case_orphan() {
    local left
    start_server auto "$ADDR" 1 block || return 1
    client orphan || return 1
    for ((left = 600; left > 0; left--)); do
        ! grep -q ended "$work/client.out" || break
        nap 0.05
    done
    facts=$(<"$work/client.out")
    grep -q 'the connection ended' "$work/client.out"
}

# Clients that go at once, of both kinds, before anybody accepts; then one that stays.
case_clients_that_go() {
    local count=20 pids=() kind
    processes nobody $((2 * count + 1)) || return 1
    for kind in auto plain; do
        with "$kind" "$work/client.$kind" timeout 100 "$python" "$here/auto_processes.py" go "$ADDR" "$port" "$count" \
            >"$work/client.$kind.out" 2>&1 &
        pids+=($!)
    done
    wait "${pids[0]}" && wait "${pids[1]}" || return 1
    echo >&"$orders"
    run_client auto "$ADDR" block
    wait "$server" || return 1
    facts="$(grep -c ': RDMA: connected' "$work/client.auto") by RDMA that go"
    [ "$status" = 0 ] && [ "$(grep -c '^echoed 0$' "$work/server.out")" = $((2 * count)) ] && grep -q '^echoed 100000$' "$work/server.out"
}

# stranger NAME KIND WAY [INPUT]: clients of auto_processes.py in the background, as many as `strangers` says.
stranger() {
    with "$2" "$work/client.$1" timeout 900 "$python" "$here/auto_processes.py" "$3" "$ADDR" "$port" "$strangers" \
        <"${4:-/dev/null}" >"$work/client.$1.out" 2>&1 &
    pids+=($!)
}

# The server's descriptors; they are counted again until there are as few as before.
descriptors() {
    local left wanted=${1:-} counted=$(grep -c ^descriptors "$work/server.out") number
    for ((left = 300; left > 0; left--)); do
        echo count >&"$orders"
        counted=$((counted + 1))
        until_lines "$counted" ^descriptors || return 1
        number=$(sed -n 's/^descriptors \([0-9]*\) .*/\1/p' "$work/server.out" | tail -n 1)
        if [ -z "$wanted" ] || [ "$number" -le "$wanted" ]; then break; fi
        nap 0.1
    done
    echo "$number"
    [ "$left" -gt 0 ]
}

# Port scanners, clients of both kinds that go at once or stay silent, all at the same time: honest clients are served,
# and the server has as many descriptors afterwards as before.
case_strangers() {
    local before_them after pids=() pid kind
    processes strangers 0 || return 1
    several 1 auto "$ADDR" && several 1 plain "$ADDR" && before_them=$(descriptors) || return 1
    stranger go-rdma auto go
    stranger go-tcp plain go
    stranger scan plain scan
    stranger hold-tcp plain hold
    stranger hold-rdma auto hold
    for kind in auto plain auto plain; do several 1 "$kind" "$ADDR" || return 1; done
    for pid in "${pids[@]}"; do wait "$pid" || return 1; done
    several 1 auto "$ADDR" && several 1 plain "$ADDR" && after=$(descriptors "$before_them") || return 1
    facts="$strangers of each, $(cat "$work"/client.{go,hold}-rdma | grep -c ': RDMA: connected') by RDMA; $after descriptors"
    echo >&"$orders"
    wait "$server" && [ "$(grep -c ': RDMA: connected' "$work/client.hold-rdma")" -gt 0 ]
}

# More silent connections than the server may have descriptors; it serves again when they are gone.
case_descriptor_limit() {
    local kind pids times=0
    processes strangers 64 && mkfifo "$work/client.orders" && exec {go}<>"$work/client.orders" || return 1
    for kind in plain auto; do
        pids=()
        strangers=70 stranger "hold-$kind" "$kind" hold "$work/client.orders"
        times=$((times + 1))
        until_lines "$times" ^full && echo >&"$go" && wait "${pids[0]}" && several 1 "$kind" "$ADDR" || return 1
    done
    exec {go}>&-
    descriptors >/dev/null && facts=$(grep ^descriptors "$work/server.out" | tail -n 1) || return 1
    echo >&"$orders"
    wait "$server" && [ "$(sed -n 's/.* refused //p' <<<"$facts")" -gt 0 ]
}

# forked SERVER CLIENT: adds to `came_to` what a client and a server of auto.c came to, each auto, plain or fork, the
# reference's fork mode.
forked() {
    local outcome=0
    start_server "$1" "$ADDR" 1 block || return 1
    with "$2" "$work/client.log" timeout 40 "$programs/auto" client "$ADDR" "$port" block >"$work/client.out" 2>&1 || outcome=$?
    stop_server
    came_to+="$outcome $(grep -c '^echoed 100000$' "$work/server.out"); "
    # Without a match grep fails.
    return 0
}

# The reference's fork mode knows only itself: with it, automatic mode is what a program without the library is.
case_fork_mode_of_the_reference() {
    local came_to='' automatic
    forked auto fork && forked fork auto || return 1
    automatic=$came_to came_to=''
    forked plain fork && forked fork plain || return 1
    facts="client's status and connections served: ${automatic%; }"
    [ "$automatic" = "$came_to" ] || facts="$facts, but plain ${came_to%; }"
    [ "$automatic" = "$came_to" ]
}

# More clients at once than the listener's queue takes.
case_small_backlog() {
    local i pids=()
    start_server auto "$ADDR" 30 poll || return 1
    for ((i = 0; i < 30; i++)); do
        with auto "$work/client.$i" timeout 100 "$programs/auto" client "$ADDR" "$port" block >"$work/client.$i.out" 2>&1 &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || return 1; done
    wait "$server" || return 1
    facts="$(cat "$work"/client.*[0-9] | grep -c ': RDMA: connected') by RDMA"
    [ "$(grep -c '^echoed 100000' "$work/server.out")" = 30 ]
}

# rsrun finds the library, passes input, arguments and status on, and lists the ways of the connections.
case_rsrun() {
    local rsrun=$here/../../programs/rsrun
    start_server auto 0.0.0.0 2 block || return 1
    for to in "$ADDR" 127.0.0.1; do
        lab-ours env RSRUN_LIBRARY="$ours" "$rsrun" --mode auto -t 15000 -v -- sh -c 'read -r word; "$@" && exit "$word"' sh \
            timeout 100 "$programs/auto" client "$to" "$port" block <<<7 >"$work/client.out" 2>"$work/client.$to"
        [ $? = 7 ] || return 1
    done
    wait "$server" || return 1
    facts="$(cat "$work"/client.*.1 | grep -c '^rsrun: 1 connection: ') reports"
    grep -q '1 by RDMA, 0 by TCP' "$work/client.$ADDR" && grep -q "1  connect  $ADDR $port .* RDMA  connected" "$work/client.$ADDR" &&
        grep -q '0 by RDMA, 1 by TCP' "$work/client.127.0.0.1" && grep -q 'TCP   a loopback address, 100000 bytes sent, 100000 received$' "$work/client.127.0.0.1" || return 1
    # Attempts that fail are no connections, whether connect(2) waits or not.
    facts+=', failed attempts'
    lab-ours env RSRUN_LIBRARY="$ours" "$rsrun" --mode auto -t 15000 -v "$python" -c '
import errno, select, socket, sys
for blocking in True, False:
    s = socket.socket()
    s.setblocking(blocking)
    if s.connect_ex((sys.argv[1], 1)) == errno.EINPROGRESS:
        select.select([], [s], [])
    s.close()' "$ADDR" 2>"$work/client.refused" || return 1
    [ "$(head -n 1 "$work/client.refused")" = 'rsrun: 0 connections: 0 by RDMA, 0 by TCP; 2 failed' ] || return 1
    # Programs that the library cannot change, that do not start with it, and that do; wrong options.
    facts+=', checks'
    mkdir "$work/alone" && cp "$ours" "$work/alone/librspreload.so" && cp "$ours" "$work/alone/librdmacm.so.1"
    ! LD_LIBRARY_PATH=$work/alone "$rsrun" -l "$work/alone/librspreload.so" --check "$python" >"$work/client.check" &&
        grep -q 'does not start with the library: .*librdmacm' "$work/client.check" || return 1
    export RSRUN_LIBRARY=$ours
    ! "$rsrun" --check /sbin/ldconfig >"$work/client.check" && grep -q 'linked statically' "$work/client.check" &&
        LD_LIBRARY_PATH='' "$rsrun" --check "$python" && ! "$rsrun" --check /nowhere/program >/dev/null || return 1
    "$rsrun" --mode x true 2>/dev/null
    [ $? = 125 ] || return 1
    "$rsrun" /nowhere/program 2>/dev/null
    [ $? = 127 ] || return 1
    [ "$(RS_MODE=rmda "$rsrun" true 2>&1)" = 'true: librspreload: RS_MODE="rmda" has no effect: it must be auto, rdma or tcp' ] || return 1
    # The library with its own librdmacm, not the system's, before other libraries.
    local libraries=$ours:$LAB_OURS/librdmacm.so.1
    [ "$(LD_LIBRARY_PATH='' "$rsrun" sh -c 'echo "$LD_PRELOAD"' 2>&1)" = "$libraries" ] &&
        [ "$(LD_PRELOAD=a.so "$rsrun" sh -c 'echo "$LD_PRELOAD"' 2>/dev/null)" = "$libraries:a.so" ]
}

# rsstat lists the connections of preloaded programs while they exist, by RDMA and by TCP, with their bytes, for root and not
# for another user; nothing of processes that have ended, by themselves or killed, and no failure when one ends meanwhile.
case_rsstat() {
    local rsstat=$LAB_OURS/../bin/rsstat to end held listed=0
    start_server auto 0.0.0.0 4 block || return 1
    mkfifo "$work/connected" "$work/held"
    # The server ends when a connection by RDMA is reset: that one is the last.
    for end in "$ADDR 0" 127.0.0.1\ 0 127.0.0.1\ 137 "$ADDR 137"; do
        to=${end% *}
        with auto "$work/client.log" "$python" -c '
import os, resource, socket, sys
# The socket has a number like those of the library.
for _ in range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 1024)):
    os.dup(0)
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.sendall(b"x")
s.recv(1)
open(sys.argv[3], "w").write("connected\n")
sys.stdin.read()
if sys.argv[4] != "0":
    os.kill(os.getpid(), 9)' "$to" "$port" "$work/connected" "${end#* }" <"$work/held" 2>"$work/client.err" &
        exec {held}>"$work/held"
        read -r _ <"$work/connected" || return 1
        "$rsstat" --json >"$work/client.json" && "$rsstat" -c -e >"$work/client.text" || return 1
        "$python" -c 'import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.execv(sys.argv[1], sys.argv[1:])' "$rsstat" --json >"$work/client.other" || return 1
        exec {held}>&-
        while kill -0 "$!" 2>/dev/null; do
            "$rsstat" --json >"$work/client.ending" && "$python" -m json.tool "$work/client.ending" >/dev/null || return 1
            listed=$((listed + 1))
        done
        wait "$!"
        [ $? = "${end#* }" ] && "$rsstat" --json >"$work/client.ended" || return 1
        "$python" - "$to:$port" "$work"/client.{json,text,other,ended} "$DEV" <<'P' || return 1
import json, sys
peer, listed, text, other, ended = sys.argv[1], *map(open, sys.argv[2:6])
listed, other, ended = json.load(listed), json.load(other), json.load(ended)
def connections(listed):
    return [one for one in listed["sockets"] if (one["peer"], one["state"]) == (peer, "ESTAB")]
assert listed["schema"] == 2, listed
[one] = connections(listed)
assert one["way"] == ("TCP" if peer.startswith("127.") else "RDMA"), one
assert (one["sent_bytes"], one["received_bytes"]) == (1, 1), one
assert one["send_buffer"] > 0 and one["receive_buffer"] > 0, one
lines = text.read().splitlines()
[place] = [place for place, line in enumerate(lines) if peer in line and "ESTAB" in line and one["command"] in line]
if one["way"] == "RDMA":
    assert (one["sent_messages"], one["device"]) == (1, sys.argv[6]), one
    assert "sent 1 byte in 1 message, received 1 byte in 1 message," in lines[place + 1], lines
else:
    assert one["fd"] > 256 and one["device"] is None, one
    assert lines[place + 1].strip() == "sent 1 byte, received 1 byte, buffers of {send_buffer} and {receive_buffer} bytes".format(**one), lines
states = {(one["way"], one["state"]) for one in listed["sockets"]}
assert {("RDMA", "LISTEN"), ("TCP", "LISTEN")} <= states, states
assert not other["sockets"], other
assert not connections(ended), ended
P
    done
    facts="by RDMA and by TCP, $listed lists while processes ended"
}

# Listeners that cannot use RDMA keep no slot: after more of them than there are slots, one that can uses it.
case_slots_of_failed_listeners() {
    ip addr replace 10.99.0.1/32 dev lo
    port=$((port + 1))
    start auto "$python" -c '
import socket, sys
for _ in range(65):
    socket.create_server(("10.99.0.1", 0)).close()
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
connection, _ = server.accept()
connection.sendall(connection.recv(1))' "$ADDR" "$port" || return 1
    with auto "$work/client.log" timeout 60 "$python" -c '
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"x")
assert connection.recv(1) == b"x"' "$ADDR" "$port" >"$work/client.out" 2>"$work/client.err" || return 1
    facts=$(said "$work/server.log")
    [ "$facts" = RDMA ]
}

# librspreload-full.so: the calls of full.c, which pass with TCP sockets, too.
case_full() {
    local mode full=${ours%.so}-full.so
    port=$((port + 1))
    "$programs/full" "$ADDR" "$port" >"$work/client.tcp" || return 1
    for mode in rdma auto; do
        port=$((port + 1))
        lab-ours env RS_MODE=$mode RS_TIMEOUT=15000 RDMACM_LOG="connections,$work/client.log" "LD_PRELOAD=$full" \
            timeout 100 "$programs/full" "$ADDR" "$port" >"$work/client.$mode" || return 1
    done
    # Each case of both modes by a connection of its own, which has two ends; one has two connections, one perhaps more.
    facts="$(cat "$work"/client.{tcp,rdma,auto} | grep -c '^ok') calls"
    for mode in tcp rdma auto; do
        [ "$(tail -n 1 "$work/client.$mode")" = complete ] || { facts+=", ended early" && return 1; }
    done
    [ "$(grep -c ESTABLISHED "$work/client.log")" -ge $((4 * (1 + $(grep -c '^ok' "$work/client.tcp")))) ]
}

run_cases() {
    local name facts before status outcome
    for name in $(compgen -A function case_); do
        wanted "${name#case_}" || continue
        before=$(packets) facts='' outcome=0
        rm -f /dev/shm/librspreload.*
        "$name" || outcome=$?
        case $outcome in
        0) report "${name#case_}" yes "$facts" ;;
        77) echo "skip ${name#case_}: $facts" ;;
        *) report "${name#case_}" no "$facts" ;;
        esac
        stop_server
    done
}
